"""A small server for units of the test: echo.py PORT, or without one at a socket that the service manager hands over."""
import socket
import sys
import threading


def serve(connection):
    with connection:
        while data := connection.recv(1000):
            connection.sendall(data)


listener = socket.create_server(("127.0.0.1", int(sys.argv[1]))) if len(sys.argv) > 1 else socket.socket(fileno=3)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
