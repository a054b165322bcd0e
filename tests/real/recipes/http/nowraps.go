// SPDX-License-Identifier: Apache-2.0

//go:build !go1.27 || http2legacy

package main

const wraps = false
