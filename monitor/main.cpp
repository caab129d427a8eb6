// Entry point of sd-monitor.

int main() {
    return 2;
}
