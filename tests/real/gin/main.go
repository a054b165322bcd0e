// SPDX-License-Identifier: Apache-2.0
// Program gin serves a few users over HTTP with Debian's gin and its Prometheus exporter.
package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/gin-gonic/gin"
	ginprometheus "github.com/mcuadros/go-gin-prometheus"
)

type user struct {
	Name  string   `json:"name"`
	Age   int      `json:"age"`
	Roles []string `json:"roles"`
}

var errUnknown = errors.New("no such user")

//go:noinline
func lookup(name string, age int) (*user, error) {
	if name == "nobody" {
		return nil, fmt.Errorf("lookup %q: %w", name, errUnknown)
	}
	return &user{name, age, []string{"reader", name}}, nil
}

func show(c *gin.Context) {
	found, err := lookup(c.Param("name"), len(c.Param("name")))
	if err != nil {
		c.JSON(http.StatusNotFound, gin.H{"error": err.Error()})
		return
	}
	c.JSON(http.StatusOK, *found)
}

func add(c *gin.Context) {
	var given user
	if err := c.ShouldBindJSON(&given); err != nil {
		c.String(http.StatusBadRequest, err.Error())
		return
	}
	c.String(http.StatusCreated, given.Name)
}

func main() {
	gin.SetMode(gin.ReleaseMode)
	engine := gin.New()
	ginprometheus.NewPrometheus("gin").Use(engine)
	engine.GET("/user/:name", show)
	engine.POST("/user", add)
	panic(engine.Run(os.Args[1]))
}
