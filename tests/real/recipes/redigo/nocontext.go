// SPDX-License-Identifier: Apache-2.0

//go:build !go1.24
// +build !go1.24

package main

import "github.com/gomodule/redigo/redis"

func doContext(client redis.Conn, command string, args ...interface{}) { client.Do(command, args...) }
