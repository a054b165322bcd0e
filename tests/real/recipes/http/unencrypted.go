// SPDX-License-Identifier: Apache-2.0

//go:build go1.27

package main

import (
	"net"
	"net/http"

	"golang.org/x/net/http2"
)

// unencrypted has net/http begin HTTP/2 without TLS, which golang.org/x/net 0.27 does not know.
func unencrypted(transport http.RoundTripper, handler http.Handler) {
	server := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	check(http2.ConfigureServer(server, &http2.Server{}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go server.Serve(listener)
	get(transport, "http://"+listener.Addr().String(), "/unencrypted", false)
}
