// Included in front of every file of a layout (bench/meson.build): its functions begin SD_LAYOUT_PAD bytes
// later.
asm(".text\n.skip " SD_LAYOUT_PAD ", 0x90\n");
