// SPDX-License-Identifier: Apache-2.0
// Program client asks a server (see serve) without end, over as many connections as it is told, and
// checks each answer: that there is one, its hashes, and what was computed.
//
// Its arguments are the server's plain and encrypted addresses. It prints "ready PID", waits for a
// line, asks until another one comes, prints "truth " and how many answers there were, and how many
// wrong or missing ones, as JSON, and ends after a third line.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/ioutil"
	"math"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
)

type question struct {
	Number int
	Text   string
	List   []float64
}

type answer struct {
	Number int
	Text   string
	Depth  uint64
	Mean   float64
	Sum    string
}

var done, wrong, over int64

func ask(client *http.Client, url string, n int) (answer, error) {
	q := question{n, strings.Repeat("gopher ", n%50+1), []float64{1, 2, 3, 4, float64(n)}}
	var got answer
	body, _ := json.Marshal(q)
	response, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		return got, err
	}
	defer response.Body.Close()
	text, err := ioutil.ReadAll(response.Body)
	if err != nil {
		return got, err
	}
	sum := sha256.Sum256(text)
	if response.StatusCode != 200 || response.Header.Get("X-Sum") != hex.EncodeToString(sum[:]) {
		return got, fmt.Errorf("status %d, sum %s of %q", response.StatusCode, response.Header.Get("X-Sum"), text)
	}
	if err := json.Unmarshal(text, &got); err != nil {
		return got, err
	}
	return got, check(q, got)
}

// check computes the answer anew, but for what only the server knows: the hash of its stack.
func check(q question, got answer) error {
	want := answer{Number: q.Number, Text: strings.ToUpper(q.Text), Depth: got.Depth}
	for _, x := range q.List {
		want.Mean += math.Sqrt(x) * 0.5
	}
	want.Mean /= float64(len(q.List))
	if index := q.Number % len(q.List); index%3 == 0 {
		want.Number = -q.Number
	} else {
		want.Mean += q.List[index]
	}
	text, _ := json.Marshal(want)
	sum := sha256.Sum256(text)
	want.Sum = hex.EncodeToString(sum[:])
	if want != got {
		return fmt.Errorf("%v, not %v", got, want)
	}
	return nil
}

func main() {
	input := bufio.NewReader(os.Stdin)
	fmt.Println("ready", os.Getpid())
	input.ReadString('\n')
	encrypted := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: true,
	}}
	var running sync.WaitGroup
	for i := 0; i < 6; i++ {
		running.Add(1)
		client, url := http.DefaultClient, "http://"+os.Args[1]
		if i%2 == 1 {
			client, url = encrypted, "https://"+os.Args[2]
		}
		go func(i int) {
			defer running.Done()
			depths := map[byte]uint64{}
			for n := i; atomic.LoadInt64(&over) == 0; n += 7 {
				got, err := ask(client, url, n)
				if known, there := depths[byte(n)]; err == nil && there && known != got.Depth {
					err = fmt.Errorf("a stack's hash changed: %d: %v", known, got)
				}
				depths[byte(n)] = got.Depth
				if err != nil {
					atomic.AddInt64(&wrong, 1)
					fmt.Fprintln(os.Stderr, err)
				}
				atomic.AddInt64(&done, 1)
			}
		}(i)
	}
	input.ReadString('\n')
	atomic.StoreInt64(&over, 1)
	running.Wait()
	text, _ := json.Marshal(map[string]int64{"done": done, "wrong": wrong})
	fmt.Println("truth", string(text))
	input.ReadString('\n')
}
