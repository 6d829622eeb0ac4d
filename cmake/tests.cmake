# Unit tests live beside the code: one test program per layer, made of its *_test.cc files.
#
# Labels: `core` is all of these tests; `check` is each of them once, for `make check`. Tests labelled
# `best` repeat one of `core` and are only there for `check`.
find_package(GTest REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)  # the reference of the methods that project onto a basis

add_library(thinreduce_test_main tests/test_main.cc)
target_link_libraries(thinreduce_test_main PUBLIC thinreduce_internal GTest::gtest GTest::gmock fmt::fmt)
# A hundred files that run for seconds: compile them fast rather than well. Less would slow the
# sanitizers' runs more than it saves.
target_compile_options(thinreduce_test_main PUBLIC -O1)
# Test programs share its precompiled headers, so it is compiled with their -fPIE instead of -fPIC.
set_target_properties(thinreduce_test_main PROPERTIES POSITION_INDEPENDENT_CODE OFF)
target_compile_options(thinreduce_test_main PRIVATE -fPIE)
target_precompile_headers(thinreduce_test_main PRIVATE ${common_headers} <gmock/gmock.h> <gtest/gtest.h>)

if(THINREDUCE_SANITIZE MATCHES "undefined")
  # The library's behaviour must be defined; checking the tests' own takes half of their build.
  target_compile_options(thinreduce_test_main PUBLIC -fno-sanitize=undefined)
endif()

function(compile_test program)
  target_precompile_headers(${program} REUSE_FROM thinreduce_test_main)
  compile_in_batches(${program} 8)
endfunction()

set(simd_targets reference SSE4 AVX2 AVX3)
set(test_environment "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(simd_targets reference NEON SVE SVE_256 SVE2 SVE2_128)
  # Highway has special code for vectors of 32 and 16 bytes; qemu has vectors of 64 by default.
  set(environment_SVE_256 "QEMU_CPU=max,sve-default-vector-length=32")
  set(environment_SVE2_128 "QEMU_CPU=max,sve-default-vector-length=16")
elseif(THINREDUCE_SANITIZE MATCHES "address")
  set(simd_targets reference AVX2)  # what such a build has
elseif(THINREDUCE_SANITIZE MATCHES "thread")
  # Races do not depend on the instruction set at all.
  set(simd_targets AVX2)
  set(test_environment "TSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/cmake/tsan.supp")
endif()

# Tests that read golden files, in a folder that the two of them know.
set(golden_tests ${PROJECT_SOURCE_DIR}/thinreduce/wire/frame_test.cc
                 ${PROJECT_SOURCE_DIR}/tests/golden_means_test.cc)
set_source_files_properties(${golden_tests} PROPERTIES COMPILE_DEFINITIONS
                            THINREDUCE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")

# The reference for our own transforms, in tests only: the library must not link it.
find_library(FFTW_LIBRARY fftw3 REQUIRED)

add_custom_target(core_tests)

# Results must not depend on the instruction set, so the program runs once per target, chosen by
# THINREDUCE_SIMD; a target that this CPU lacks is reported as skipped. Without THINREDUCE_SIMD the
# library chooses the best target. `ARGN` are further arguments of the program.
function(add_simd_tests name program targets)
  foreach(target ${targets})
    add_test(NAME ${name}@${target} COMMAND ${program} ${ARGN})
    set_tests_properties(${name}@${target} PROPERTIES
      ENVIRONMENT "THINREDUCE_SIMD=${target};${environment_${target}};${test_environment}"
      SKIP_RETURN_CODE 77 LABELS core)
  endforeach()
  add_test(NAME ${name}@best COMMAND ${program})
  set_tests_properties(${name}@best PROPERTIES LABELS "check;best")
endfunction()

# Sanitizers and emulators take minutes for some programs: adds one in parts, which run at the same
# time. `ARGN` are arguments of the program.
function(add_parts layer count)
  math(EXPR last "${count} - 1")
  foreach(part RANGE ${last})
    add_test(NAME ${layer}@${part} COMMAND ${layer}_test ${ARGN})
    set_tests_properties(${layer}@${part} PROPERTIES LABELS core COST 250
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${count};GTEST_SHARD_INDEX=${part};${test_environment}")
  endforeach()
endfunction()

set(layers_with_threads transport collective engine)
foreach(layer kernels wire transport collective method methods plan engine)
  set(layer_tests ${thinreduce_tests})
  list(FILTER layer_tests INCLUDE REGEX "/thinreduce/${layer}/")
  if(NOT layer_tests)
    continue()
  endif()
  if(THINREDUCE_SANITIZE MATCHES "thread" AND NOT layer IN_LIST layers_with_threads)
    continue()  # the other layers start no threads; the engine's tests run every method
  endif()
  if(CMAKE_CROSSCOMPILING AND layer IN_LIST layers_with_threads)
    continue()  # an emulator is too slow for their deadlines; the golden means run all three
  endif()
  add_executable(${layer}_test ${layer_tests})
  target_link_libraries(${layer}_test PRIVATE thinreduce_test_main)
  compile_test(${layer}_test)
  add_dependencies(core_tests ${layer}_test)
  if(TARGET gloo)
    target_link_libraries(${layer}_test PRIVATE gloo)
  endif()
  if(layer STREQUAL kernels)
    target_link_libraries(${layer}_test PRIVATE ${FFTW_LIBRARY})
  elseif(layer STREQUAL methods)
    target_link_libraries(${layer}_test PRIVATE Eigen3::Eigen)
  endif()
  if(layer STREQUAL methods)
    # Laws over hundreds of steps run once: what they show depends neither on the target nor on a
    # sanitizer nor, as the golden means show, on the architecture.
    set(long_laws "Laws/BoundedResidual.*:Laws/KeepingMethod.LosesNothing/*")
    if(NOT THINREDUCE_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
      add_test(NAME methods_laws COMMAND methods_test --gtest_filter=${long_laws})
      set_tests_properties(methods_laws PROPERTIES LABELS core)
    endif()
    # An emulator takes minutes, and keeps the memory of threads that have ended, gigabytes per
    # process. The golden means run on every target.
    if(CMAKE_CROSSCOMPILING)
      set(test_environment "THINREDUCE_SIMD=NEON")
      add_parts(methods 24 --gtest_filter=-${long_laws})
      set(test_environment "")
    elseif(THINREDUCE_SANITIZE)  # on the best target: tests of kernels run the reference as well
      add_parts(methods 4 --gtest_filter=-${long_laws})
    else()
      add_simd_tests(methods methods_test "${simd_targets}" --gtest_filter=-${long_laws})
    endif()
  elseif(layer STREQUAL kernels)
    add_simd_tests(kernels kernels_test "${simd_targets}")
  elseif(layer STREQUAL engine AND THINREDUCE_SANITIZE)
    add_parts(engine 3)
  else()
    add_test(NAME ${layer} COMMAND ${layer}_test)
    set_tests_properties(${layer} PROPERTIES ENVIRONMENT "${test_environment}" LABELS "core;check")
  endif()
endforeach()

# ctest starts the tests of highest cost first. The engine's mostly wait, so they must not be last.
foreach(test engine transport methods_laws)
  if(TEST ${test})
    set_tests_properties(${test} PROPERTIES COST 250)
  endif()
endforeach()

# The bits of every method's means, on every target.
if(NOT THINREDUCE_SANITIZE MATCHES "thread")
  add_executable(golden_means_test tests/golden_means_test.cc)
  target_link_libraries(golden_means_test PRIVATE thinreduce_test_main)
  compile_test(golden_means_test)
  add_dependencies(core_tests golden_means_test)
  if(THINREDUCE_SANITIZE)  # a minute; tests of kernels run the reference as well
    add_simd_tests(golden_means golden_means_test AVX2 --gtest_filter=*.EveryMean*)
  else()
    add_simd_tests(golden_means golden_means_test "${simd_targets}")
  endif()
endif()
