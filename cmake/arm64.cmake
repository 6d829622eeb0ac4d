# Toolchain file: cross-compiles for arm64 on Debian and runs the programs under qemu-user.
# `scripts/setup.sh arm64` installs the compiler, the emulator and the libraries (multiarch).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

# The prefix of the dynamic linker is /: with the cross compiler's own sysroot, programs that start
# a thread hang.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /)
