"""The three programs of the demonstration: how each server is started and how each case loads it."""

import os
import signal

import parse

HERE = os.path.dirname(os.path.abspath(__file__))


class Case:
    """One row of the table. `load(port, seconds, estimate)` gives the command, `read(text)` the result."""

    def __init__(self, key, title, load, read, bar=None, counted=None):
        self.key, self.title, self.load, self.read = key, title, load, read
        self.bar = bar  # ("rate" or "mean_us", factor): what is asked of it, beside not being slower
        self.counted = counted  # requests that the command of the counting run makes, None: its result says


class Redis:
    name = "redis"
    needs_estimate = True

    def __init__(self, directory):
        self.directory = directory

    def server(self, port):
        return ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                "--daemonize", "no", "--dir", self.directory, "--logfile", ""]

    stop_signal = signal.SIGTERM

    def cases(self):
        for test in ("GET", "SET"):
            yield self._case(test, 1, 1, ("mean_us", 3.0) if test == "GET" else None)
            yield self._case(test, 50, 1, ("rate", 3.0) if test == "GET" else None)
            yield self._case(test, 50, 16, None)

    @staticmethod
    def _case(test, clients, pipeline, bar):
        def load(port, seconds, estimate):
            requests = max(2000, int((estimate or 20000) * seconds))
            requests -= requests % (clients * pipeline)
            return ["redis-benchmark", "-h", "127.0.0.1", "-p", str(port), "-t", test.lower(), "-c", str(clients),
                    "-P", str(pipeline), "-n", str(requests), "--csv"]

        def read(text):
            result = parse.redis_benchmark(text)
            # It prints whole microseconds; one at a time, the rate is exact
            if clients == 1 and pipeline == 1:
                result["mean_us"] = 1e6 / result["rate"]
            return result

        title = f"redis {test} -c {clients}" + (f" -P {pipeline}" if pipeline > 1 else "")
        key = f"redis-{test.lower()}-c{clients}" + (f"-p{pipeline}" if pipeline > 1 else "")
        return Case(key, title, load, read, bar, counted=lambda command: int(command[command.index("-n") + 1]))


class Nginx:
    name = "nginx"
    needs_estimate = False
    stop_signal = signal.SIGTERM
    bodies = (("100 B", 100), ("10 KiB", 10 << 10), ("1 MiB", 1 << 20))

    def __init__(self, directory):
        self.directory = directory

    def server(self, port):
        home = os.path.join(self.directory, f"nginx-{port}")
        for sub in ("", "www", "tmp"):
            os.makedirs(os.path.join(home, sub), exist_ok=True)
        for _, size in self.bodies:
            with open(os.path.join(home, "www", f"{size}.bin"), "wb") as f:
                f.write(os.urandom(size))
        temporary = "".join(f"{kind}_temp_path {home}/tmp/{kind};\n"
                            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        user = "user root;\n" if os.geteuid() == 0 else ""
        with open(os.path.join(home, "nginx.conf"), "w", encoding="ascii") as f:
            f.write(f"""{user}daemon off;
master_process on;
worker_processes 2;
pid {home}/nginx.pid;
error_log {home}/error.log;
events {{ worker_connections 1024; }}
http {{
{temporary}access_log off;
sendfile on;
keepalive_requests 1000000000;
server {{ listen 127.0.0.1:{port}; root {home}/www; }}
}}
""")
        return ["nginx", "-p", home, "-e", f"{home}/error.log", "-c", f"{home}/nginx.conf"]

    def cases(self):
        for label, size in self.bodies:
            yield self._case(f"nginx-{size}", f"nginx {label}, keep-alive", size, False,
                             ("rate", 2.0) if size == 100 else None)
        yield self._case("nginx-close", "nginx 100 B, one connection each", 100, True, None)

    @staticmethod
    def _case(key, title, size, close, bar):
        def load(port, seconds, _estimate):
            header = ["-H", "Connection: close"] if close else []
            return ["wrk", "-t", "1", "-c", "32", "-d", f"{max(1, round(seconds))}s", "--timeout", "5s", "--latency",
                    "-s", os.path.join(HERE, "wrk_report.lua"), *header, f"http://127.0.0.1:{port}/{size}.bin"]

        def read(text):
            # wrk adds samples it thinks were left out ("coordinated omission"), which moves its mean by
            # multiples on a busy machine. Every connection has one request under way all the time, so the
            # rate says what the mean is.
            result = parse.wrk(text)
            result["wrk_mean_us"] = result["mean_us"]
            result["mean_us"] = 32 * 1e6 / result["rate"]
            return result

        return Case(key, title, load, read, bar)


class Memcached:
    name = "memcached"
    needs_estimate = False
    stop_signal = signal.SIGTERM

    def __init__(self, directory):
        self.directory = directory

    def server(self, port):
        user = ["-u", "root"] if os.geteuid() == 0 else []
        return ["memcached", *user, "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "1", "-m", "2048"]

    def cases(self):
        for clients in (1, 50):
            yield self._case(clients)

    @staticmethod
    def _case(clients):
        def load(port, seconds, _estimate):
            return ["memcaslap", "-s", f"127.0.0.1:{port}", "-T", "1", "-c", str(clients),
                    "-t", f"{max(1, round(seconds))}s", "-S", "1000s"]

        return Case(f"memcached-c{clients}", f"memcached 90 % get, {clients} client" + "s" * (clients > 1),
                    load, lambda text: parse.memaslap(text, clients))


PROGRAMS = {each.name: each for each in (Redis, Nginx, Memcached)}
