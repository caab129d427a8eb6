// Entry point of sdstat.

int main() {
    return 2;
}
