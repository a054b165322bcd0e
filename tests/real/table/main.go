// SPDX-License-Identifier: Apache-2.0
// Program table prints the functions of another Go program as Go's own debug/gosym reads them from
// the pclntab: one line each, the entry as a number relative to the text start, and the name.
package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"debug/gosym"
	"fmt"
	"os"
	"strings"
)

// magics are what a little-endian 64-bit pclntab of Go 1.2, 1.16, 1.18 and 1.20 begins with.
var magics = []string{
	"\xfb\xff\xff\xff\x00\x00\x01\x08", "\xfa\xff\xff\xff\x00\x00\x01\x08",
	"\xf0\xff\xff\xff\x00\x00\x01\x08", "\xf1\xff\xff\xff\x00\x00\x01\x08",
}

func main() {
	file, err := elf.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	text := file.Section(".text").Addr
	table, err := gosym.NewTable(nil, gosym.NewLineTable(pclntab(file), text))
	if err != nil {
		panic(err)
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for _, f := range table.Funcs {
		fmt.Fprintln(out, f.Entry-table.Funcs[0].Entry, f.Name)
	}
}

func pclntab(file *elf.File) []byte {
	for _, section := range file.Sections {
		if strings.HasSuffix(section.Name, ".gopclntab") {
			data, err := section.Data()
			if err != nil {
				panic(err)
			}
			return data
		}
	}
	// A cgo PIE by Go up to 1.25 has the table somewhere in .data.rel.ro.
	data, err := file.Section(".data.rel.ro").Data()
	if err != nil {
		panic(err)
	}
	for _, magic := range magics {
		for at := 0; ; at++ {
			next := bytes.Index(data[at:], []byte(magic))
			if next < 0 {
				break
			}
			at += next
			if at%32 == 0 {
				return data[at:]
			}
		}
	}
	panic("no pclntab")
}
