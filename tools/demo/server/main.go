// SPDX-License-Identifier: Apache-2.0
// Serve Euler's number over HTTP: a small program worth tracing.
//
//	/e?iterations=N  Euler's number
//	/get?key=K       a value of the store, which has the keys user:0 to user:99
//	/list            all of the store's users, from a text that is made anew each time
//	/panic           a handler that panics, which net/http recovers
//
// With -tls it does so over TLS as well, under a certificate of its own making.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var calls int64

// computeE adds up the series 1/0! + 1/1! + 1/2! + ...
//
//go:noinline
func computeE(iterations int64) float64 {
	sum, term := 1.0, 1.0
	for n := int64(1); n < iterations; n++ {
		term /= float64(n)
		sum += term
	}
	return sum
}

func handleE(w http.ResponseWriter, r *http.Request) {
	iterations, err := strconv.ParseInt(r.FormValue("iterations"), 10, 64)
	if err != nil || iterations < 1 {
		http.Error(w, "iterations must be a positive number", http.StatusBadRequest)
		return
	}
	atomic.AddInt64(&calls, 1)
	fmt.Fprintf(w, "e = %.15f\n", computeE(iterations))
}

var errNotFound = errors.New("not found")

// Store holds users by key.
type Store struct {
	mu    sync.Mutex
	users map[string]User
}

// User is what the store holds.
type User struct {
	Name string
	Age  int
}

func newStore() *Store {
	s := &Store{users: make(map[string]User)}
	for n := 0; n < 100; n++ {
		s.users[fmt.Sprintf("user:%d", n)] = User{fmt.Sprintf("Name %d", n), 20 + n%50}
	}
	return s
}

// Get returns a user. It is slow for every tenth.
//
//go:noinline
func (s *Store) Get(key string) (user User, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	user, ok := s.users[key]
	if !ok {
		return user, fmt.Errorf("store: key %q: %w", key, errNotFound)
	}
	if user.Age%10 == 0 {
		time.Sleep(12 * time.Millisecond)
	}
	return user, nil
}

func (s *Store) handleGet(w http.ResponseWriter, r *http.Request) {
	user, err := s.Get(r.FormValue("key"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	fmt.Fprintf(w, "%s is %d\n", user.Name, user.Age)
}

// list returns all users, a line each. It makes a new text for each of them: garbage.
//
//go:noinline
func (s *Store) list() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := ""
	for key, user := range s.users {
		text += fmt.Sprintf("%-60s %-60s %60d\n", key, user.Name, user.Age)
	}
	return text
}

func (s *Store) handleList(w http.ResponseWriter, r *http.Request) {
	fmt.Fprint(w, s.list())
}

func handlePanic(w http.ResponseWriter, r *http.Request) {
	panic(fmt.Sprintf("asked to panic by %s", r.RemoteAddr))
}

// certificate makes a certificate for any name, good for an hour.
func certificate() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		log.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func listen(address string) net.Listener {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	return listener
}

func main() {
	address := flag.String("listen", "127.0.0.1:0", "the address to serve at")
	secure := flag.String("tls", "", "an address to serve at over TLS")
	flag.Parse()
	log.SetFlags(0)

	http.HandleFunc("/e", handleE)
	http.HandleFunc("/get", newStore().handleGet)
	http.HandleFunc("/list", newStore().handleList)
	http.HandleFunc("/panic", handlePanic)

	listener := listen(*address)
	fmt.Println("listening on", listener.Addr())
	go func() { log.Fatal(http.Serve(listener, nil)) }()
	if *secure != "" {
		inner := listen(*secure)
		fmt.Println("listening for TLS on", inner.Addr())
		config := &tls.Config{Certificates: []tls.Certificate{certificate()}}
		go func() { log.Fatal(http.Serve(tls.NewListener(inner, config), nil)) }()
	}

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	<-stop
	fmt.Println("computeE was called", atomic.LoadInt64(&calls), "times")
}
