"""Java: the JDK's HTTP server and client, blocking sockets and NIO selectors in one program and in two."""

TITLE = "OpenJDK"
PACKAGES = ("openjdk-17-jdk-headless",)
WORKLOAD = "com.sun.net.httpserver and java.net.http.HttpClient, sockets with timeouts, an NIO selector with 50 channels"
QUICK = True

SERVER = """
import com.sun.net.httpserver.*;
import java.io.*;
import java.net.*;
import java.nio.*;
import java.nio.channels.*;
import java.util.concurrent.*;

public class Server {
    public static void main(String[] args) throws Exception {
        InetAddress lo = InetAddress.getByName("127.0.0.1");
        HttpServer http = HttpServer.create(new InetSocketAddress(lo, Integer.parseInt(args[0])), 64);
        http.createContext("/", x -> {
            byte[] body = x.getRequestBody().readAllBytes();
            byte[] answer = x.getRequestURI().getPath().equals("/echo") ? body : ("hello " + x.getRequestURI()).getBytes();
            x.sendResponseHeaders(200, answer.length == 0 ? -1 : answer.length);
            try (OutputStream out = x.getResponseBody()) { out.write(answer); }
        });
        http.setExecutor(Executors.newFixedThreadPool(4));
        http.start();
        ServerSocket blocking = new ServerSocket(Integer.parseInt(args[1]), 64, lo);
        Thread acceptor = new Thread(() -> {
            try {
                while (true) {
                    Socket s = blocking.accept();
                    new Thread(() -> {
                        try (s) { s.getInputStream().transferTo(s.getOutputStream()); } catch (IOException e) { }
                    }).start();
                }
            } catch (IOException e) { }
        });
        acceptor.setDaemon(true);
        acceptor.start();
        Selector selector = Selector.open();
        ServerSocketChannel listener = ServerSocketChannel.open();
        listener.bind(new InetSocketAddress(lo, Integer.parseInt(args[2])));
        listener.configureBlocking(false);
        listener.register(selector, SelectionKey.OP_ACCEPT);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel c = listener.accept();
                    if (c == null) continue;
                    c.configureBlocking(false);
                    c.register(selector, SelectionKey.OP_READ, ByteBuffer.allocate(65536));
                    continue;
                }
                SocketChannel c = (SocketChannel) key.channel();
                ByteBuffer b = (ByteBuffer) key.attachment();
                if (key.isReadable() && b.hasRemaining() && c.read(b) < 0) { c.close(); continue; }
                b.flip();
                c.write(b);
                b.compact();
                key.interestOps(SelectionKey.OP_READ | (b.position() > 0 ? SelectionKey.OP_WRITE : 0));
            }
            selector.selectedKeys().clear();
        }
    }
}
"""

CLIENT = """
import java.io.*;
import java.net.*;
import java.net.http.*;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.*;
import java.nio.channels.*;
import java.util.*;
import java.util.concurrent.*;

public class Client {
    static void say(String name, boolean good) { System.out.println((good ? "good " : "bad ") + name); }

    public static void main(String[] args) throws Exception {
        String base = "http://127.0.0.1:" + args[0];
        byte[] body = new byte[4 << 20];
        new Random(1).nextBytes(body);
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        say("HttpClient, 4 MiB", Arrays.equals(body, client.send(HttpRequest.newBuilder(URI.create(base + "/echo"))
            .POST(HttpRequest.BodyPublishers.ofByteArray(body)).build(), BodyHandlers.ofByteArray()).body()));
        List<CompletableFuture<HttpResponse<String>>> all = new ArrayList<>();
        for (int i = 0; i < 100; i++)
            all.add(client.sendAsync(HttpRequest.newBuilder(URI.create(base + "/" + i)).build(), BodyHandlers.ofString()));
        boolean good = true;
        for (int i = 0; i < 100; i++) good &= all.get(i).get().body().equals("hello /" + i);
        say("HttpClient, 100 at once", good);
        good = true;
        for (int i = 0; i < 30; i++) {
            HttpURLConnection c = (HttpURLConnection) new URL(base + "/" + i).openConnection();
            c.setRequestProperty("Connection", i % 2 == 0 ? "close" : "keep-alive");
            try (InputStream in = c.getInputStream()) { good &= new String(in.readAllBytes()).equals("hello /" + i); }
        }
        say("HttpURLConnection", good);
        try (Socket s = new Socket("127.0.0.1", Integer.parseInt(args[1]))) {
            s.setTcpNoDelay(true);
            s.setSoTimeout(100);
            try { s.getInputStream().read(); say("read timeout", false); } catch (SocketTimeoutException e) { say("read timeout", true); }
            s.setSoTimeout(0);
            Thread writer = new Thread(() -> {
                try { s.getOutputStream().write(body); s.shutdownOutput(); } catch (IOException e) { }
            });
            writer.start();
            say("blocking echo with half-close", Arrays.equals(body, s.getInputStream().readAllBytes()));
            writer.join();
        }
        Socket closing = new Socket("127.0.0.1", Integer.parseInt(args[1]));
        Thread closer = new Thread(() -> { try { Thread.sleep(100); closing.close(); } catch (Exception e) { } });
        closer.start();
        try { closing.getInputStream().read(); say("close wakes a reader", false); } catch (SocketException e) { say("close wakes a reader", true); }
        try { new Socket("127.0.0.1", 1); say("refused", false); } catch (ConnectException e) { say("refused", true); }
        Selector selector = Selector.open();
        int channels = 50, size = 20000;
        for (int i = 0; i < channels; i++) {
            SocketChannel c = SocketChannel.open();
            c.configureBlocking(false);
            c.connect(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[2])));
            c.register(selector, SelectionKey.OP_CONNECT, new ByteBuffer[]{ByteBuffer.wrap(body, i, size), ByteBuffer.allocate(size)});
        }
        int done = 0, right = 0;
        long until = System.nanoTime() + 30_000_000_000L;
        while (done < channels && System.nanoTime() < until) {
            selector.select(1000);
            for (SelectionKey key : selector.selectedKeys()) {
                SocketChannel c = (SocketChannel) key.channel();
                ByteBuffer[] b = (ByteBuffer[]) key.attachment();
                if (key.isConnectable() && c.finishConnect()) key.interestOps(SelectionKey.OP_READ | SelectionKey.OP_WRITE);
                if (key.isValid() && key.isWritable()) {
                    c.write(b[0]);
                    if (!b[0].hasRemaining()) key.interestOps(SelectionKey.OP_READ);
                }
                if (key.isValid() && key.isReadable()) {
                    c.read(b[1]);
                    if (!b[1].hasRemaining()) {
                        int start = b[0].limit() - size;
                        if (Arrays.equals(b[1].array(), Arrays.copyOfRange(body, start, start + size))) right++;
                        done++;
                        c.close();
                    }
                }
            }
            selector.selectedKeys().clear();
        }
        say("NIO selector, 50 channels", right == channels);
        System.exit(0);
    }
}
"""


def run(r):
    r.write("Server.java", SERVER)
    r.write("Client.java", CLIENT)
    http, blocking, selector = r.port(), r.port(), r.port()
    # Single-file launch: the compiler and the program share a process.
    server = r.server(["java", "-Xmx256m", r.path("Server.java"), str(http), str(blocking), str(selector)], selector, wait=60)
    text = r.attempt("the client ends well", lambda: r.run(
        ["java", "-Xmx256m", r.path("Client.java"), str(http), str(blocking), str(selector)], 90))
    for line in (text or "").splitlines():
        word, _, name = line.partition(" ")
        r.check(name, word == "good", line)
    r.stop(server, good=(143,))
