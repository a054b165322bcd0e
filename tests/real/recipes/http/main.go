// SPDX-License-Identifier: Apache-2.0
// Program http serves and sends requests by golang.org/x/net/http2, with net/http and without it.
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c"
)

var truth = map[string][]string{}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func handle(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusAccepted)
	io.WriteString(w, "hello")
	w.(http.Flusher).Flush()
	if r.URL.Path == "/panics" {
		panic(http.ErrAbortHandler)
	}
}

func served(path string, byNet bool) {
	text := "202 GET " + path + ", 5 bytes"
	switch {
	case byNet && !wraps:
		text = "GET " + path + ", by golang.org/x/net: @http2 has the status"
	case path == "/panics":
		gone := "<unavailable: the call did not return>"
		text = gone + " GET " + path + ", " + gone + " bytes"
	}
	truth["http.server"] = append(truth["http.server"], text)
}

// get sends a request with a transport, to a server whose requests golang.org/x/net handles or not.
func get(with http.RoundTripper, url, path string, byNet bool) {
	response, err := (&http.Client{Transport: with}).Get(url + path)
	check(err)
	io.Copy(io.Discard, response.Body) // of a handler that panics it ends with an error
	response.Body.Close()
	text := fmt.Sprintf("GET %s%s -> %s, error <nil>", response.Request.URL.Host, path, response.Status)
	truth["http.client"] = append(truth["http.client"], text)
	served(path, byNet)
}

// upgrade begins HTTP/2 with a request of HTTP/1.
func upgrade(address string) {
	conn, err := net.Dial("tcp", address)
	check(err)
	fmt.Fprintf(conn, "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"+
		"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n")
	from := bufio.NewReader(conn)
	for line := ""; line != "\r\n"; {
		line, err = from.ReadString('\n')
		check(err)
	}
	io.WriteString(conn, http2.ClientPreface)
	framer := http2.NewFramer(conn, from)
	check(framer.WriteSettings())
	for ended := false; !ended; {
		frame, err := framer.ReadFrame()
		check(err)
		ended = frame.Header().Type == http2.FrameData && frame.Header().Flags.Has(http2.FlagDataEndStream)
	}
	conn.Close()
	truth["http.server"] = append(truth["http.server"], "0 GET /upgrade, 0 bytes")
}

func main() {
	input := bufio.NewReader(os.Stdin)
	handler := http.HandlerFunc(handle)
	settings := &http2.Server{}
	upgraded := make(chan bool, 1)
	both := h2c.NewHandler(handler, settings)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		both.ServeHTTP(w, r)
		if r.URL.Path == "/upgrade" && r.ProtoMajor == 1 {
			upgraded <- true
		}
	}))

	secure := httptest.NewUnstartedServer(handler)
	configured := &http2.Server{}
	check(http2.ConfigureServer(secure.Config, configured))
	secure.TLS = secure.Config.TLSConfig
	secure.StartTLS()
	authorities := x509.NewCertPool()
	authorities.AddCert(secure.Certificate())
	trusting := &tls.Config{RootCAs: authorities}

	// With a server that net/http knows, but without it.
	alone, err := tls.Listen("tcp", "127.0.0.1:0", secure.TLS)
	check(err)
	go func() {
		for {
			conn, err := alone.Accept()
			check(err)
			check(conn.(*tls.Conn).Handshake())
			go configured.ServeConn(conn, &http2.ServeConnOpts{Handler: handler})
		}
	}()

	dial := func(network, address string, _ *tls.Config) (net.Conn, error) {
		return net.Dial(network, address)
	}
	open := &http2.Transport{AllowHTTP: true, DialTLS: dial}
	given := &http.Transport{TLSClientConfig: trusting.Clone()}
	check(http2.ConfigureTransport(given))
	own := &http2.Transport{TLSClientConfig: trusting.Clone()}

	fmt.Println("ready", os.Getpid())
	input.ReadString('\n')
	for n := 0; n < 3; n++ {
		get(open, plain.URL, "/h2c", true)
		get(given, plain.URL, "/first", false)
		get(given, secure.URL, "/configured", false)
		get(own, secure.URL, "/own", false)
		get(own, "https://"+alone.Addr().String(), "/alone", true)
	}
	get(open, plain.URL, "/panics", true)
	upgrade(plain.Listener.Addr().String())
	unencrypted(open, handler)
	<-upgraded // when its connection has ended
	text, _ := json.Marshal(truth)
	fmt.Printf("truth %s\n", text)
	input.ReadString('\n')
}
