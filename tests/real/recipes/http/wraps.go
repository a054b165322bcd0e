// SPDX-License-Identifier: Apache-2.0

//go:build go1.27 && !http2legacy

package main

// wraps says that golang.org/x/net/http2 has net/http do the work.
const wraps = true
