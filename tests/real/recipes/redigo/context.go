// SPDX-License-Identifier: Apache-2.0

//go:build go1.24
// +build go1.24

package main

import (
	"context"

	"github.com/gomodule/redigo/redis"
)

// doContext is of redigo 1.9.
func doContext(client redis.Conn, command string, args ...interface{}) {
	redis.DoContext(client, context.Background(), command, args...)
}
