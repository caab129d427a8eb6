"""Programs that know nothing of it, with their large memory from the zero-copy module: what zerocopy_test.py --measure runs.

Redis with values of 1 MiB, and Nginx that passes on bodies of 10 MiB, each with pages (sdrun --zero-copy), with libsd alone,
and over the kernel's TCP, in turns. The figures are requests for each second of the machine.
"""
import re
import shutil
import subprocess

NAMES = ("redis-server", "redis-benchmark", "nginx", "ab")

# Who is asked and who asks go the same way. A redis-benchmark that was refused once waits for ever, with or
# without libsd.
PROGRAMS = r"""way() { w=$1; shift; case $w in pages) ./sdrun --zero-copy "$@" ;; copied) ./sdrun "$@" ;; kernel) "$@" ;; esac; }
pid_of() { for p in /proc/[0-9]*; do [ "$(cat $p/comm 2>/dev/null)" = "$1" ] && echo ${p#/proc/}; done; }
gone() { for p in $(pid_of $1); do kill $p 2>/dev/null; done; while [ -n "$(pid_of $1)" ]; do usleep 50000; done; }
handed() { [ $1 != pages ] || echo "# $2 $(($(count taken) - had)) pages taken, $(($(count copied_in) - once)) copied in"; }
before() { had=$(count taken) once=$(count copied_in); }
[ -e /etc/group ] || echo root:x:0: >/etc/group
mkdir -p web logs /var/log/nginx; dd if=/dev/urandom of=web/body bs=1M count=10 2>/dev/null
cat >behind.conf <<end
user root; daemon off; worker_processes 1; pid $PWD/behind.pid; error_log stderr error;
events { worker_connections 64; }
http { access_log off; client_body_temp_path $PWD/logs/a; proxy_temp_path $PWD/logs/b; fastcgi_temp_path $PWD/logs/c;
  uwsgi_temp_path $PWD/logs/d; scgi_temp_path $PWD/logs/e; sendfile SENDFILE; output_buffers 2 1m;
  server { listen 127.0.0.1:8081; root $PWD/web; } }
end
sed "s|behind.pid|front.pid|; s|logs/|logs/f|g; s|server { .*|proxy_buffering on; proxy_buffers 16 1m; proxy_buffer_size 1m; \
proxy_busy_buffers_size 4m; proxy_max_temp_file_size 0; server { listen 127.0.0.1:8080; location / { \
proxy_pass http://127.0.0.1:8081; } } }|; s|SENDFILE|off|" behind.conf >front.conf
sed -i 's|SENDFILE|off|' behind.conf
for round in $ROUNDS; do for w in pages copied kernel; do
    before
    way $w ./redis-server --port 7000 --save "" --appendonly no --daemonize no >/dev/null 2>&1 &
    until timeout 5 ./redis-benchmark -p 7000 -n 1 -t ping >/dev/null 2>&1; do usleep 100000; done
    way $w ./redis-benchmark -p 7000 -n $REDIS -c 2 -d 1048576 -t set,get --csv 2>/dev/null | sed -n "s/^\"\([SG]ET\)\",\"\([0-9.]*\)\".*/# redis \1 $w \2/p"
    gone redis-server; handed $w redis
    before
    way $w ./nginx -p $PWD -c behind.conf >/dev/null 2>&1 & way $w ./nginx -p $PWD -c front.conf >/dev/null 2>&1 &
    until ./ab -n 1 http://127.0.0.1:8080/body >/dev/null 2>&1; do usleep 100000; done
    way $w ./ab -n $NGINX -c 1 http://127.0.0.1:8080/body 2>/dev/null | sed -n "s/^Requests per second: *\([0-9.]*\).*/# nginx $w \1/p"
    gone nginx; handed $w nginx
done; done
"""


def copy_programs(folder):
    """The programs, and the libraries that they need, beside those of libsd."""
    for name in NAMES:
        path = shutil.which(name)
        shutil.copy(path, folder)
        needs = subprocess.run(["ldd", path], check=True, stdout=subprocess.PIPE, text=True).stdout
        for library in re.findall(r"(/\S+) \(0x", needs):
            shutil.copy(library, folder / "lib")
    (folder / "programs").write_text(PROGRAMS, encoding="utf-8")
