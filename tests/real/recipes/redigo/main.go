// SPDX-License-Identifier: Apache-2.0
// Program redigo sends commands to a server of its own, which logs what it gets.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

func number(from *bufio.Reader) int {
	line, err := from.ReadString('\n')
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	return n
}

// serve answers each command of a connection, after it has logged it.
func serve(conn net.Conn, logged chan<- string) {
	from := bufio.NewReader(conn)
	for count := number(from); count > 0; count = number(from) {
		words := make([]string, count)
		for n := range words {
			text := make([]byte, number(from)+2)
			io.ReadFull(from, text)
			words[n] = string(text[:len(text)-2])
		}
		logged <- strings.Join(words, " ")
		fmt.Fprint(conn, map[bool]string{true: "$-1\r\n", false: "+OK\r\n"}[words[0] == "get"])
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	logged := make(chan string, 100)
	go func() {
		conn, _ := listener.Accept()
		serve(conn, logged)
	}()
	client, err := redis.Dial("tcp", listener.Addr().String())
	if err != nil {
		panic(err)
	}
	fmt.Println("ready", os.Getpid())
	input := bufio.NewReader(os.Stdin)
	input.ReadString('\n')
	client.Do("set", "a", "one")
	client.Do("get", "b")
	client.Do("set", "c", 7)
	redis.DoWithTimeout(client, time.Minute, "get", "d")
	doContext(client, "get", "e")
	redis.NewScript(1, "return 1").Do(client, "f") // by its hash: the server says that it knows it
	done := len(logged)
	client.Send("set", "g", "piped")
	client.Send("get", "h")
	client.Flush()
	client.Receive()
	client.Receive()
	client.Send("get", "i")
	client.Do("") // what was sent
	pool := &redis.Pool{Dial: func() (redis.Conn, error) { return client, nil }}
	pooled := pool.Get()
	pooled.Send("get", "j")
	pooled.Flush()
	pooled.Receive()
	sent := len(logged)
	pooled.Do("get", "k")
	doContext(pooled, "get", "l")
	close(logged)
	commands := []string{}
	for command := range logged {
		how := "]"
		if at := len(commands); at >= done && at < sent {
			how = "], sent"
		}
		commands = append(commands, strings.Replace(command, " ", " [", 1)+how+", error <nil>")
	}
	text, _ := json.Marshal(map[string][]string{"redigo": commands})
	fmt.Printf("truth %s\n", text)
	input.ReadString('\n')
}
