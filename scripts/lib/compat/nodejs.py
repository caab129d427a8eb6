"""Node.js: an HTTP server and clients in one process and in two, streams, keep-alive, cluster workers."""

import json

TITLE = "Node.js"
PACKAGES = ("nodejs",)
WORKLOAD = "HTTP server and client, keep-alive and not, 8 MiB echoed as a stream, half-close, a cluster of 2 workers"
QUICK = True

SERVER = """
const http = require('http'), net = require('net'), crypto = require('crypto'), cluster = require('cluster');
const [port, echo, workers] = process.argv.slice(2).map(Number);
if (workers && cluster.isPrimary) {
    for (let i = 0; i < workers; i++) cluster.fork();
    process.on('SIGTERM', () => { for (const w of Object.values(cluster.workers)) w.kill(); setTimeout(() => process.exit(0), 100); });
} else {
    http.createServer((q, a) => {
        if (q.url === '/hash') {
            const h = crypto.createHash('sha1');
            q.on('data', d => h.update(d)).on('end', () => a.end(h.digest('hex')));
        } else if (q.url === '/echo') q.pipe(a);
        else if (q.url === '/pid') a.end(String(process.pid));
        else a.end('hello ' + q.url);
    }).listen(port, '127.0.0.1');
    if (echo) net.createServer({allowHalfOpen: true}, s => s.pipe(s)).listen(echo, '127.0.0.1');
    if (!workers) process.on('SIGTERM', () => process.exit(0));
}
"""

CLIENT = """
const http = require('http'), net = require('net'), crypto = require('crypto');
const [port, echo] = process.argv.slice(2).map(Number);
const result = {};
function get(path, agent, body) {
    return new Promise((ok, bad) => {
        const q = http.request({host: '127.0.0.1', port, path, agent, method: body ? 'POST' : 'GET'}, a => {
            const parts = [];
            a.on('data', d => parts.push(d)).on('end', () => ok(Buffer.concat(parts))).on('error', bad);
        });
        q.on('error', bad);
        q.end(body);
    });
}
(async () => {
    const keep = new http.Agent({keepAlive: true, maxSockets: 4}), close = new http.Agent({keepAlive: false});
    const body = crypto.randomBytes(8 << 20);
    result.hash = (await get('/hash', keep, body)).toString() === crypto.createHash('sha1').update(body).digest('hex');
    result.echo = (await get('/echo', keep, body)).equals(body);
    let good = 0;
    await Promise.all([...Array(400).keys()].map(async i => { if ((await get('/' + i, keep)).toString() === 'hello /' + i) good++; }));
    result.keepAlive = good;
    good = 0;
    for (let round = 0; round < 10; round++)
        await Promise.all([...Array(20).keys()].map(async i => { if ((await get('/' + i, close)).toString() === 'hello /' + i) good++; }));
    result.close = good;
    keep.destroy();
    if (echo) {
        result.halfClose = await new Promise((ok, bad) => {
            const s = net.connect(echo, '127.0.0.1'), parts = [];
            s.on('data', d => parts.push(d)).on('end', () => ok(Buffer.concat(parts).equals(body))).on('error', bad);
            s.end(body);
        });
        result.refused = await new Promise(ok => net.connect(1, '127.0.0.1').on('error', e => ok(e.code)));
        result.timeout = await new Promise(ok => {
            const s = net.connect(echo, '127.0.0.1');
            s.setTimeout(100, () => { s.destroy(); ok(true); });
        });
    }
    console.log(JSON.stringify(result));
})().catch(e => { console.error(e); process.exit(1); });
"""


def ask(r, name, port, echo):
    text = r.attempt(name, lambda: r.run(["node", r.path("client.js"), str(port), str(echo)], 60))
    return json.loads(text) if text else {}


def run(r):
    r.write("server.js", SERVER)
    r.write("client.js", CLIENT)
    port, echo = r.port(), r.port()
    server = r.server(["node", r.path("server.js"), str(port), str(echo), "0"], echo)
    for name, got in sorted(ask(r, "clients of one server", port, echo).items()):
        r.equal(f"one server: {name}", got, {"keepAlive": 400, "close": 200, "refused": "ECONNREFUSED"}.get(name, True))
    r.stop(server)
    # The primary passes each connection to a worker; or the workers accept on a listener that was passed to
    # them.
    for policy, name in (("rr", "cluster"), ("none", "cluster, shared listener")):
        port = r.port()
        server = r.server(["node", r.path("server.js"), str(port), "0", "2"], port, env={"NODE_CLUSTER_SCHED_POLICY": policy})
        for what, got in sorted(ask(r, f"clients of a {name}", port, 0).items()):
            r.equal(f"{name}: {what}", got, {"keepAlive": 400, "close": 200}.get(what, True))
        r.stop(server)
