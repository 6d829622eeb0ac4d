// Marks the functions and classes that a shared library of thinreduce exports. Everything else is
// hidden.
#pragma once

#define THINREDUCE_EXPORT __attribute__((visibility("default")))
#define THINREDUCE_HIDDEN __attribute__((visibility("hidden")))
