"""Python asyncio: streams, protocols, sendfile, TLS, child processes that talk over TCP."""

TITLE = "Python asyncio"
PACKAGES = ("python3", "openssl")
WORKLOAD = "streams of 4 MiB on 50 connections, TLS, sendfile, timeouts, cancelled reads, multiprocessing connections"
QUICK = True

SCRIPT = """
import asyncio, hashlib, multiprocessing.connection, os, socket, ssl, sys, tempfile

def say(name, good):
    print("good" if good else "bad", name, flush=True)

async def echo(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except ConnectionError:
        pass
    finally:
        writer.close()

async def once(port, body, context=None):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    async def send():
        writer.write(body)
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    task = asyncio.create_task(send())
    got = await reader.readexactly(len(body))
    await task
    writer.close()
    await writer.wait_closed()
    return got == body

async def main(certificate):
    server = await asyncio.start_server(echo, "127.0.0.1", 0, backlog=100)
    port = server.sockets[0].getsockname()[1]
    say("a stream of 4 MiB", await once(port, os.urandom(4 << 20)))
    say("50 connections at once", all(await asyncio.gather(*[once(port, os.urandom(100000)) for _ in range(50)])))
    right = 0
    for _ in range(200):
        right += await once(port, b"x" * 10)
    say("200 short connections", right == 200)
    a = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    a.load_cert_chain(certificate)
    b = ssl.create_default_context(cafile=certificate)
    b.check_hostname = False
    secure = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=a)
    say("TLS, 10 connections", all(await asyncio.gather(*[once(secure.sockets[0].getsockname()[1], os.urandom(300000), b) for _ in range(10)])))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await asyncio.wait_for(reader.read(1), 0.1)
        say("a read that times out", False)
    except asyncio.TimeoutError:
        writer.write(b"!")
        say("a read that times out", await reader.read(1) == b"!")
    writer.transport.abort()
    received = hashlib.sha1()
    ended = asyncio.Event()
    async def sink(reader, writer):
        while data := await reader.read(65536):
            received.update(data)
        writer.close()
        ended.set()
    other = await asyncio.start_server(sink, "127.0.0.1", 0)
    with tempfile.TemporaryFile() as f:
        body = os.urandom(3000001)
        f.write(body)
        f.flush()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", other.sockets[0].getsockname()[1])
        await loop.sendfile(transport, f)
        transport.close()
        await asyncio.wait_for(ended.wait(), 20)
    say("sendfile", received.digest() == hashlib.sha1(body).digest())
    raw = socket.socket()
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", port))
    await asyncio.get_running_loop().sock_sendall(raw, b"raw")
    say("sock_connect, sock_sendall, sock_recv", await asyncio.get_running_loop().sock_recv(raw, 10) == b"raw")
    raw.close()
    process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "read x; echo got $x", stdin=-1, stdout=-1)
    say("a subprocess beside connections", (await process.communicate(b"it\\n"))[0] == b"got it\\n")
    for s in (server, secure, other):
        s.close()
        await s.wait_closed()

def answer(address):
    with multiprocessing.connection.Client(address, authkey=b"k") as c:
        while (x := c.recv()) is not None:
            c.send(x * 2)

def processes():
    right = 0
    with multiprocessing.connection.Listener(("127.0.0.1", 0), authkey=b"k") as listener:
        children = [multiprocessing.Process(target=answer, args=(listener.address,)) for _ in range(4)]
        for child in children:
            child.start()
        connections = [listener.accept() for _ in children]
        for i in range(100):
            for c in connections:
                c.send(b"y" * i * 100)
            waiting = list(connections)
            while waiting:
                for c in multiprocessing.connection.wait(waiting):
                    right += c.recv() == b"y" * i * 200
                    waiting.remove(c)
        for c in connections:
            c.send(None)
            c.close()
        for child in children:
            child.join()
            right += child.exitcode == 0
    say("multiprocessing connections of 4 children", right == 404)

if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    asyncio.run(main(sys.argv[1]))
    processes()
    print("end")
"""


def run(r):
    script = r.write("streams.py", SCRIPT)
    key, certificate = r.path("key"), r.path("certificate")
    r.plain(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
             "-subj", "/CN=localhost"])
    both = r.write("both.pem", r.read("key") + r.read("certificate"))
    text = r.attempt("the program ends well", lambda: r.run(["/usr/bin/python3", script, both], 90)) or ""
    for line in text.splitlines():
        word, _, name = line.partition(" ")
        r.check(name or word, word != "bad", line)
