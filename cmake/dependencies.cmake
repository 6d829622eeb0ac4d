# Libraries that every build needs. Sets thinreduce_fmt and thinreduce_highway, which are targets to
# link, and thinreduce_replacements, source files that replace a library.
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
set(thinreduce_replacements "")
if(NOT THINREDUCE_SELF_CONTAINED)
  return()
endif()

# Where a library is shared, its headers and our replacement do. (Of xxHash, only headers are used
# in any case.) Debian has no static ones of fmt and Highway.
function(replace_if_shared library variable)
  get_target_property(kind ${library} TYPE)
  if(NOT kind STREQUAL "SHARED_LIBRARY")
    return()
  endif()
  add_library(${variable}_headers INTERFACE)
  target_include_directories(${variable}_headers SYSTEM INTERFACE
    $<TARGET_PROPERTY:${library},INTERFACE_INCLUDE_DIRECTORIES>)
  set(${variable} $<BUILD_INTERFACE:${variable}_headers> PARENT_SCOPE)
  set(thinreduce_replacements ${thinreduce_replacements} ${ARGN} PARENT_SCOPE)
endfunction()
set(folder ${PROJECT_SOURCE_DIR}/thinreduce)
replace_if_shared(hwy::hwy thinreduce_highway
  ${folder}/kernels/no_libhwy/cpu_targets.cc ${folder}/kernels/no_libhwy/highway.cc)
replace_if_shared(fmt::fmt thinreduce_fmt ${folder}/no_libfmt/fmt.cc)
set_source_files_properties(${folder}/no_libfmt/fmt.cc PROPERTIES COMPILE_OPTIONS -fno-inline)
