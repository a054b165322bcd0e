// SPDX-License-Identifier: Apache-2.0
// Program work computes without end, on all threads and in all the ways that strain a Go runtime,
// and compares each result with the one that it computed before it was disturbed.
//
// It prints "ready PID", waits for a line, prints "busy" once everything runs, goes on until another
// line comes, prints "truth " and how many results there were, and how many wrong ones, as JSON, and
// ends after a third line. "status" lines before that make it print its numbers so far.
package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"os/exec"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const parked = 10000

//go:noinline
func descend(n int, seed byte) uint64 {
	var frame [200]byte
	for i := range frame {
		frame[i] = seed + byte(i*n)
	}
	sum := fnv.New64a()
	sum.Write(frame[:])
	if n > 0 {
		return sum.Sum64() ^ descend(n-1, seed+3)
	}
	return sum.Sum64()
}

// grown runs on a new stack, which grows several times over.
func grown() string {
	result := make(chan uint64)
	go func() { result <- descend(300, 7) }()
	return strconv.FormatUint(<-result, 16)
}

func hashed() string {
	data := bytes.Repeat([]byte("gopher"), 500)
	for i := 0; i < 5; i++ {
		sum := sha256.Sum256(data)
		data = append(data, sum[:]...)
	}
	return fmt.Sprintf("%x", sha256.Sum256(data))
}

func sorted() string {
	words := make([]string, 500)
	seed := uint32(1)
	for i := range words {
		seed = seed*1664525 + 1013904223
		words[i] = strconv.Itoa(int(seed >> 8))
	}
	sort.Strings(words)
	counts := map[string]int{}
	for i, word := range words {
		counts[word[:2]] += i
	}
	text, _ := json.Marshal(counts)
	return strings.ToUpper(strings.Join(words[:9], "+")) + string(text)
}

func floats() string {
	sum := 0.0
	for i := 1; i < 2000; i++ {
		sum += math.Sin(float64(i)) / math.Sqrt(float64(i))
	}
	return strconv.FormatFloat(sum, 'g', -1, 64)
}

//go:noinline
func thrower(n int, list []int) int {
	defer func() { list[0] += n }()
	return list[n]
}

//go:noinline
func recovering(n int) (result int) {
	list := []int{1, 2, 3}
	defer func() {
		if r := recover(); r != nil {
			result = list[0] * 100
		}
	}()
	return thrower(n, list)
}

func panics() string {
	total := 0
	for n := 0; n < 12; n++ {
		total += recovering(n)
	}
	return strconv.Itoa(total)
}

func channels() string {
	in, out := make(chan int), make(chan int, 3)
	var done sync.WaitGroup
	for i := 0; i < 8; i++ {
		done.Add(1)
		go func() {
			defer done.Done()
			for n := range in {
				out <- n * n
			}
		}()
	}
	go func() {
		for n := 0; n < 200; n++ {
			in <- n
		}
		close(in)
		done.Wait()
		close(out)
	}()
	sum := 0
	timeout := time.NewTimer(time.Hour)
	defer timeout.Stop()
	for {
		select {
		case n, more := <-out:
			if !more {
				return strconv.Itoa(sum)
			}
			sum += n
		case <-timeout.C:
			return "timeout"
		}
	}
}

// child forks, which shares this program's memory with a process that runs a few functions in it.
func child() string {
	text, err := exec.Command("/bin/echo", "child").Output()
	return fmt.Sprint(string(text), err)
}

var jobs = map[string]func() string{
	"grown": grown, "hashed": hashed, "sorted": sorted, "floats": floats, "panics": panics,
	"channels": channels, "child": child,
}

var expected = map[string]string{}

var over, wrong, done int64

func repeat(name string, pause time.Duration) {
	for atomic.LoadInt64(&over) == 0 {
		if got := jobs[name](); got != expected[name] {
			atomic.AddInt64(&wrong, 1)
			fmt.Fprintln(os.Stderr, name, "is", got, "not", expected[name])
		}
		atomic.AddInt64(&done, 1)
		if pause > 0 {
			time.Sleep(pause)
		}
	}
}

func report(kind string) {
	text, _ := json.Marshal(map[string]int64{
		"done": atomic.LoadInt64(&done), "wrong": atomic.LoadInt64(&wrong),
	})
	fmt.Printf("%s %s\n", kind, text)
}

func main() {
	runtime.GOMAXPROCS(4)
	for name, job := range jobs {
		expected[name] = job()
	}
	release := make(chan bool)
	for i := 0; i < parked; i++ {
		go func() { <-release }()
	}
	input := bufio.NewReader(os.Stdin)
	fmt.Println("ready", os.Getpid())
	input.ReadString('\n')
	var running sync.WaitGroup
	for name := range jobs {
		running.Add(1)
		pause := time.Duration(0)
		if name == "child" {
			pause = 20 * time.Millisecond
		}
		go func(name string) { defer running.Done(); repeat(name, pause) }(name)
	}
	running.Add(1)
	go func() {
		defer running.Done()
		for atomic.LoadInt64(&over) == 0 {
			runtime.GC()
			time.Sleep(5 * time.Millisecond)
		}
	}()
	fmt.Println("busy")
	for {
		line, err := input.ReadString('\n')
		if err != nil || strings.TrimSpace(line) != "status" {
			break
		}
		report("status")
	}
	atomic.StoreInt64(&over, 1)
	running.Wait()
	close(release)
	report("truth")
	input.ReadString('\n')
}
