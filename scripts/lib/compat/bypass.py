"""Programs that bypass the C library, a static C program and a Go program, alone and with ordinary peers."""

import os

TITLE = "Go and static programs"
PACKAGES = ("golang-go", "gcc", "curl", "python3")
VERSION = "golang-go"
WORKLOAD = "a Go HTTP server and client, a static C echo server, each with curl and Python under sdrun as the other side"
QUICK = False
FALLS_BACK = True
NOTE = "they make system calls themselves, so their connections are kernel TCP; their peers notice nothing"

GO = """
package main

import ("bytes"; "fmt"; "io"; "net"; "net/http"; "os"; "sync")

func check(name string, good bool) {
    if good { fmt.Println("good", name) } else { fmt.Println("bad", name) }
}

func main() {
    body := bytes.Repeat([]byte("0123456789abcdef"), 1<<17)
    if os.Args[1] == "serve" {
        l, err := net.Listen("tcp", "127.0.0.1:"+os.Args[2])
        if err != nil { panic(err) }
        http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
            if q.Method == "POST" { io.Copy(w, q.Body) } else { fmt.Fprint(w, "hello") }
        }))
    }
    url := "http://127.0.0.1:" + os.Args[2] + "/"
    a, err := http.Post(url, "text/plain", bytes.NewReader(body))
    if err != nil { panic(err) }
    got, _ := io.ReadAll(a.Body)
    check("2 MiB echoed", bytes.Equal(got, body))
    var wait sync.WaitGroup
    var lock sync.Mutex
    right := 0
    for i := 0; i < 50; i++ {
        wait.Add(1)
        go func() {
            defer wait.Done()
            a, err := http.Get(url)
            if err != nil { return }
            text, _ := io.ReadAll(a.Body)
            a.Body.Close()
            lock.Lock()
            if string(text) == "hello" { right++ }
            lock.Unlock()
        }()
    }
    wait.Wait()
    check("50 requests at once", right == 50)
}
"""

STATIC = """
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int l = socket(AF_INET, SOCK_STREAM, 0);
    if (argc < 2 || bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 16)) return 1;
    for (;;) {
        int c = accept(l, 0, 0);
        static char b[65536];
        for (ssize_t n; (n = read(c, b, sizeof b)) > 0;)
            for (ssize_t at = 0; at < n;) at += write(c, b + at, n - at);
        close(c);
    }
}
"""

HTTP = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self): self.answer(b"hello")
    def do_POST(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(body)
http.server.ThreadingHTTPServer.request_queue_size = 64
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

CLIENT = """
import os, socket, sys, threading
body = os.urandom(1 << 20)
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20) as c:
    def send():
        c.sendall(body)
        c.shutdown(socket.SHUT_WR)
    t = threading.Thread(target=send)
    t.start()
    got = b""
    while data := c.recv(65536):
        got += data
    t.join()
print("same" if got == body else f"different: {len(got)}")
"""


def run(r):
    r.write("web.go", GO)
    r.write("echo.c", STATIC)
    r.write("web.py", HTTP)
    r.write("client.py", CLIENT)
    # One build of Go serves both modes.
    program = os.path.join(os.path.dirname(r.directory), "go-web")
    if not os.path.exists(program):
        r.plain(["go", "build", "-o", program, r.path("web.go")], 300,
                env={"GOCACHE": os.path.join(os.path.dirname(r.directory), "go-cache"), "GO111MODULE": "off", "CGO_ENABLED": "0"})
    r.plain(["gcc", "-O1", "-static", "-o", r.path("echo"), r.path("echo.c")])
    r.begin()
    web, python, echo = r.port(), r.port(), r.port()
    servers = [r.server([program, "serve", str(web)], web),
               r.server(["/usr/bin/python3", r.path("web.py"), str(python)], python),
               r.server([r.path("echo"), str(echo)], echo)]
    for name, port in (("Go to Go", web), ("Go to Python", python)):
        for line in (r.attempt(name, lambda p=port: r.run([program, "get", str(p)])) or "").splitlines():
            word, _, what = line.partition(" ")
            r.check(f"{name}: {what}", word == "good", line)
    r.equal("curl to Go", r.attempt("curl", lambda: r.run(["curl", "-sSf", f"http://127.0.0.1:{web}/"])), "hello")
    for turn in range(5):
        r.equal(f"Python to static, {turn + 1}", r.attempt(f"client {turn + 1}", lambda: r.run(
            ["/usr/bin/python3", r.path("client.py"), str(echo)])), "same\n")
    for server in servers:
        r.stop(server, good=(0, -15, 2))
