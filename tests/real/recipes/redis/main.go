// SPDX-License-Identifier: Apache-2.0
// Program redis sends commands to a server of its own, which logs what it gets.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/go-redis/redis"
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
		answer := map[string]string{"get": "$-1\r\n", "exec": "*1\r\n+OK\r\n"}[strings.ToLower(words[0])]
		if answer == "" {
			answer = "+OK\r\n"
		}
		fmt.Fprint(conn, answer)
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
	client := redis.NewClient(&redis.Options{Addr: listener.Addr().String()})
	fmt.Println("ready", os.Getpid())
	input := bufio.NewReader(os.Stdin)
	input.ReadString('\n')
	client.Set("a", "one", 0)
	client.Get("b")
	client.Set("c", 7, 0)
	pipe := client.Pipeline()
	pipe.Set("d", "x", 0)
	pipe.Get("e")
	pipe.Exec()
	client.TxPipelined(func(pipe redis.Pipeliner) error {
		pipe.Set("f", "y", 0)
		return nil
	})
	client.Do("get", "g")
	client.Process(redis.NewCmd("get", "h"))
	tied := client.WithContext(context.Background())
	tied.Get("i")
	close(logged)
	commands := []string{}
	for command := range logged {
		commands = append(commands, "["+command+"]")
	}
	text, _ := json.Marshal(map[string][]string{"redis": commands})
	fmt.Printf("truth %s\n", text)
	input.ReadString('\n')
}
