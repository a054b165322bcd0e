// SPDX-License-Identifier: Apache-2.0
// Program redis sends commands to a server of its own, which logs what it gets.
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
	close(logged)
	commands := []string{}
	for command := range logged {
		commands = append(commands, "["+command+"]")
	}
	text, _ := json.Marshal(map[string][]string{"redis": commands})
	fmt.Printf("truth %s\n", text)
	input.ReadString('\n')
}
