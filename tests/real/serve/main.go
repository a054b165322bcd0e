// SPDX-License-Identifier: Apache-2.0
// Program serve answers requests, over plain and encrypted connections that are kept alive, while
// everything that strains a Go runtime goes on beside: the collector is forced without end, each
// request is computed on a new stack that grows several times, every third one panics and is
// recovered, and 10,000 goroutines are parked.
//
// It prints "ready PID", waits for a line, prints "busy " and its two addresses, and serves until
// another line but "status" comes. Then it prints "truth " and how many requests it has answered,
// and of how many panics, as JSON, and ends after a third line.
package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"log"
	"math"
	"math/big"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
)

const parked = 10000

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

var answered, panicked, over int64

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

//go:noinline
func mean(list []float64, scale float64) float64 {
	sum := 0.0
	for _, x := range list {
		sum += math.Sqrt(x) * scale
	}
	return sum / float64(len(list))
}

//go:noinline
func pick(list []float64, n int) float64 {
	if n%3 == 0 {
		n = len(list) // out of range: recovered far below
	}
	return list[n%(len(list)+1)]
}

func compute(q question) (a answer) {
	depth := make(chan uint64)
	go func() { depth <- descend(100, byte(q.Number)) }()
	a = answer{Number: q.Number, Text: strings.ToUpper(q.Text), Depth: <-depth}
	a.Mean = mean(q.List, 0.5)
	defer func() {
		if recover() != nil {
			atomic.AddInt64(&panicked, 1)
			a.Number = -q.Number
		}
		text, _ := json.Marshal(a)
		sum := sha256.Sum256(text)
		a.Sum = hex.EncodeToString(sum[:])
	}()
	a.Mean += pick(q.List, q.Number%len(q.List))
	return a
}

func handle(w http.ResponseWriter, r *http.Request) {
	var q question
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	text, _ := json.Marshal(compute(q))
	sum := sha256.Sum256(text)
	w.Header().Set("X-Sum", hex.EncodeToString(sum[:]))
	w.Write(text)
	atomic.AddInt64(&answered, 1)
}

func certificate() tls.Certificate {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		NotAfter:     time.Now().Add(time.Hour * 24),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		log.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func listen() (plain, encrypted net.Listener) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	encrypted, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	return plain, encrypted
}

func report(kind string) {
	text, _ := json.Marshal(map[string]int64{
		"answered": atomic.LoadInt64(&answered), "panicked": atomic.LoadInt64(&panicked),
	})
	fmt.Printf("%s %s\n", kind, text)
}

func main() {
	runtime.GOMAXPROCS(4)
	release := make(chan bool)
	for i := 0; i < parked; i++ {
		go func() { <-release }()
	}
	input := bufio.NewReader(os.Stdin)
	fmt.Println("ready", os.Getpid())
	input.ReadString('\n')
	plain, encrypted := listen()
	settings := &tls.Config{Certificates: []tls.Certificate{certificate()}}
	go http.Serve(plain, http.HandlerFunc(handle))
	server := &http.Server{Handler: http.HandlerFunc(handle), TLSConfig: settings}
	go server.ServeTLS(encrypted, "", "")
	go func() {
		for atomic.LoadInt64(&over) == 0 {
			runtime.GC()
			time.Sleep(5 * time.Millisecond)
		}
	}()
	fmt.Println("busy", plain.Addr(), encrypted.Addr())
	for {
		line, err := input.ReadString('\n')
		if err != nil || strings.TrimSpace(line) != "status" {
			break
		}
		report("status")
	}
	atomic.StoreInt64(&over, 1)
	close(release)
	report("truth")
	input.ReadString('\n')
}
