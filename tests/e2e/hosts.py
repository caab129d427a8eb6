"""Hosts for tests: network namespaces joined by veth, each with a monitor and its files."""
import json
import os
import secrets
import signal
import subprocess
import time

BUILD = os.environ['SD_BUILD_DIR']
PATIENCE = 90


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def unified_top():
    with open('/proc/self/mountinfo') as mounts:
        for words in map(str.split, mounts):
            if words[words.index('-') + 1] == 'cgroup2' and words[3] == '/':
                return words[4]
    return None


class Net:
    """A network namespace, which a sleeping process keeps."""

    def __init__(self):
        self.holder = subprocess.Popen(['unshare', '--net', 'sh', '-c', 'ip link set lo up && echo up && exec sleep 1000'],
                                       stdout=subprocess.PIPE)
        check(self.holder.stdout.readline() == b'up\n', 'no namespace can be made')
        self.enter = ['nsenter', f'--net=/proc/{self.holder.pid}/ns/net']

    def run(self, line):
        subprocess.run(self.enter + line.split(), check=True)

    def close(self):
        self.holder.kill()
        self.holder.wait()


def cable(one, name, address, other, other_name, other_address):
    one.run(f'ip link add name {name} type veth peer name {other_name} netns {other.holder.pid}')
    for net, end, given in ((one, name, address), (other, other_name, other_address)):
        net.run(f'ip addr add {given} dev {end}')
        net.run(f'ip link set dev {end} up')


class Host:
    """A monitor in a namespace, and its files."""

    def __init__(self, top, name, net):
        self.name, self.net, self.where = name, net, f'{top}/{name}'
        os.mkdir(self.where)
        self.log = open(f'{self.where}/log', 'a')
        self.monitor = None

    def file(self, name, text, mode=0o600):
        path = f'{self.where}/{name}'
        with open(path, 'w') as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
        return path

    def configure(self, *peers, own=''):
        self.file('monitor.toml', f'[peers]\nname = "{self.name}"\ndeadline = 2\n{own}\n' + '\n'.join(f'[[peer]]\n{peer}\n' for peer in peers))

    def start(self):
        self.monitor = subprocess.Popen(self.net.enter + [f'{BUILD}/sd-monitor', '--config', f'{self.where}/monitor.toml',
                                                          '--socket', f'{self.where}/monitor.sock'], stdout=self.log, stderr=self.log)
        for _ in range(1000):
            if os.path.exists(f'{self.where}/monitor.sock') and self.sdctl('--json').returncode in (0, 5):
                return
            check(self.monitor.poll() is None, 'the monitor does not start')
            time.sleep(0.02)
        check(False, f'the monitor of {self.name} does not answer')

    def reload(self):
        self.monitor.send_signal(signal.SIGHUP)

    def end(self, how=signal.SIGTERM):
        if self.monitor is not None:
            self.monitor.send_signal(how)
            self.monitor.wait()
            self.monitor = None

    def sdctl(self, *options):
        return subprocess.run([f'{BUILD}/sdctl', 'peers', *options], capture_output=True, text=True,
                              env={**os.environ, 'SD_MONITOR': f'{self.where}/monitor.sock'})

    def peers(self):
        return json.loads(self.sdctl('--json').stdout)

    def peer(self, name):
        return next(p for p in self.peers()['peers'] if p['name'] == name)

    def wait_for(self, name, what, condition):
        deadline = time.monotonic() + PATIENCE
        while True:
            peer = self.peer(name)
            if condition(peer):
                return peer
            check(time.monotonic() < deadline, f'{self.name}: {name} does not come to {what}: {peer}')
            time.sleep(0.02)

    def wait_up(self, name):
        return self.wait_for(name, 'up', lambda p: p['state'] == 'up')

    def wait_down(self, name, *causes):
        return self.wait_for(name, f'{causes}', lambda p: p['state'] != 'up' and p['cause'] in causes)

    def helper(self):
        """The process sd-peers, or None."""
        children = open(f'/proc/{self.monitor.pid}/task/{self.monitor.pid}/children').read().split()
        for pid in children:
            try:
                if open(f'/proc/{pid}/comm').read() == 'sd-peers\n':
                    return int(pid)
            except (FileNotFoundError, ProcessLookupError):
                pass # it has just ended
        return None

    def listens(self):
        """The TCP ports that something listens at in its namespace."""
        text = subprocess.run(self.net.enter + ['ss', '-Hltn'], capture_output=True, text=True, check=True).stdout
        return {int(line.split()[3].rsplit(':', 1)[1]) for line in text.splitlines()}


class Hosts:
    """alpha - beta - gamma: beta has a cable to each, the others do not see each other. alpha and beta are to talk."""

    ADDRESS = {'alpha': '10.9.1.1', 'beta': '10.9.1.2', 'gamma': '10.9.2.3'}

    def __init__(self, top):
        self.nets = [Net(), Net(), Net()]
        self.alpha, self.beta, self.gamma = (Host(top, name, net) for name, net in zip(self.ADDRESS, self.nets))
        cable(self.nets[0], 'to_beta', '10.9.1.1/24', self.nets[1], 'to_alpha', '10.9.1.2/24')
        cable(self.nets[1], 'to_gamma', '10.9.2.2/24', self.nets[2], 'to_beta', '10.9.2.3/24')

    def peer(self, name, address='', **proof):
        lines = ''.join(f'{key} = "{value}"\n' for key, value in proof.items())
        return f'name = "{name}"\naddress = "{address or self.ADDRESS[name]}"\n{lines}'

    def with_keys(self, alphas_key, betas_key):
        self.alpha.configure(self.peer('beta', key=self.alpha.file('beta.key', alphas_key)))
        self.beta.configure(self.peer('alpha', key=self.beta.file('alpha.key', betas_key)))

    def close(self):
        for host in (self.alpha, self.beta, self.gamma):
            host.end()
            host.log.close()
        for net in self.nets:
            net.close()


def new_key():
    return secrets.token_hex(32) + '\n'
