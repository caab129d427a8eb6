// Nothing: Meson precompiles a header for a source only.
