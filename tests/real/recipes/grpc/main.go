// SPDX-License-Identifier: Apache-2.0
// Program grpc calls the health service on itself; the server's interceptor logs what it answers.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

type service struct{ *health.Server }

// Check answers with the error that the request names.
func (service) Check(_ context.Context, in *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	switch in.Service {
	case "denied":
		return nil, status.Error(codes.PermissionDenied, "not you")
	case "plain":
		return nil, fmt.Errorf("a plain error")
	}
	return &healthpb.HealthCheckResponse{}, nil
}

// Watch answers twice, and ends with an error.
func (service) Watch(_ *healthpb.HealthCheckRequest, to healthpb.Health_WatchServer) error {
	to.Send(&healthpb.HealthCheckResponse{})
	to.Send(&healthpb.HealthCheckResponse{})
	return status.Error(codes.OutOfRange, "no more")
}

var truth = map[string][]string{}

func tell(recipe, format string, values ...interface{}) {
	truth[recipe] = append(truth[recipe], fmt.Sprintf(format, values...))
}

func logging(ctx context.Context, in interface{}, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (interface{}, error) {
	out, err := handler(ctx, in)
	answer := status.Convert(err)
	tell("grpc.server", "%s, code %d %s", info.FullMethod, answer.Code(), answer.Message())
	tell("grpc.handler", "%s", info.FullMethod)
	return out, err
}

func streaming(server interface{}, to grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := handler(server, to)
	answer := status.Convert(err)
	tell("grpc.server", "%s, code %d %s", info.FullMethod, answer.Code(), answer.Message())
	tell("grpc.handler", "%s, a stream", info.FullMethod)
	return err
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(logging), grpc.StreamInterceptor(streaming))
	healthpb.RegisterHealthServer(server, service{health.NewServer()})
	go server.Serve(listener)
	conn, err := grpc.Dial(listener.Addr().String(), grpc.WithInsecure(), grpc.WithBlock())
	if err != nil {
		panic(err)
	}
	fmt.Println("ready", os.Getpid())
	input := bufio.NewReader(os.Stdin)
	input.ReadString('\n')
	methods := []string{"/grpc.health.v1.Health/Check", "/no.Such/Method"}
	for _, name := range []string{"", "denied", "plain", "unknown"} {
		method := methods[0]
		if name == "unknown" {
			method = methods[1]
		}
		in, out := &healthpb.HealthCheckRequest{Service: name}, &healthpb.HealthCheckResponse{}
		answer := status.Convert(conn.Invoke(context.Background(), method, in, out))
		if answer.Code() == codes.OK {
			tell("grpc.client", "%s, code 0", method)
		} else {
			tell("grpc.client", "%s, code %d %s", method, answer.Code(), answer.Message())
		}
		if name == "unknown" { // no interceptor is asked
			tell("grpc.server", "%s, code %d %s", method, answer.Code(), answer.Message())
		}
	}
	watching, err := healthpb.NewHealthClient(conn).Watch(context.Background(), &healthpb.HealthCheckRequest{})
	tell("grpc.client", "/grpc.health.v1.Health/Watch, a stream, error %v", err)
	for err == nil {
		_, err = watching.Recv()
	}
	in := &healthpb.HealthCheckRequest{}
	_, err = healthpb.NewHealthClient(conn).Check(context.Background(), in) // as generated code does
	tell("grpc.client", "%s, code %d", methods[0], status.Code(err))
	err = grpc.Invoke(context.Background(), methods[0], in, &healthpb.HealthCheckResponse{}, conn)
	tell("grpc.client", "%s, code %d", methods[0], status.Code(err))
	conn.Close()
	server.GracefulStop() // all handlers have returned
	text, _ := json.Marshal(truth)
	fmt.Printf("truth %s\n", text)
	input.ReadString('\n')
}
