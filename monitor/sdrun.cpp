// Entry point of sdrun.

int main() {
    return 2;
}
