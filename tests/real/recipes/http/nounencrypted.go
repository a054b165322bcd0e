// SPDX-License-Identifier: Apache-2.0

//go:build !go1.27

package main

import "net/http"

func unencrypted(http.RoundTripper, http.Handler) {}
