# Libraries that every build needs. Sets thinreduce_fmt and thinreduce_highway, which are targets to
# link, and THINREDUCE_OWN_CPU_TARGETS.
find_package(fmt QUIET)
find_package(hwy QUIET)
find_package(Eigen3 QUIET NO_MODULE)
find_path(XXHASH_INCLUDE_DIR xxhash.h)

set(missing "")
function(need found name apt dnf brew)
  if(NOT ${found})
    string(APPEND missing "\n  ${name}: apt install ${apt}; dnf install ${dnf}; brew install ${brew}")
    set(missing "${missing}" PARENT_SCOPE)
  endif()
endfunction()
need(hwy_FOUND Highway libhwy-dev highway-devel highway)
need(Eigen3_FOUND "Eigen 3" libeigen3-dev eigen3-devel eigen)
need(fmt_FOUND fmt libfmt-dev fmt-devel fmt)
need(XXHASH_INCLUDE_DIR xxHash libxxhash-dev xxhash-devel xxhash)
if(missing)
  message(FATAL_ERROR "thinreduce needs these libraries to build:${missing}")
endif()

set(thinreduce_fmt fmt::fmt)
set(thinreduce_highway hwy::hwy)
set(THINREDUCE_OWN_CPU_TARGETS OFF)
if(NOT THINREDUCE_SELF_CONTAINED)
  return()
endif()
# Of xxHash, only headers are used in any case.
set(thinreduce_fmt fmt::fmt-header-only)
get_target_property(highway_kind hwy::hwy TYPE)
if(highway_kind STREQUAL "SHARED_LIBRARY")
  # Debian has no static one. The headers are enough together with our own look at the CPU.
  add_library(highway_headers INTERFACE)
  target_include_directories(highway_headers SYSTEM INTERFACE
    $<TARGET_PROPERTY:hwy::hwy,INTERFACE_INCLUDE_DIRECTORIES>)
  set(thinreduce_highway $<BUILD_INTERFACE:highway_headers>)
  set(THINREDUCE_OWN_CPU_TARGETS ON)
endif()
