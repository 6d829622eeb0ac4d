# Compiles several files as one, because headers and templates take most of the time.
# THINREDUCE_BATCHES=OFF compiles each by itself, as clang-tidy does.

# Tests, programs and the Python module: `size` files at once. Each test has a namespace of its own,
# so that the names of two tests don't clash.
function(compile_in_batches target size)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${THINREDUCE_BATCHES}
                                             UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

# The library: the files of a folder at once. The others are kernels, which include themselves once
# per instruction set, and the folders of transports and of the engine, whose names clash. For
# sanitizers only: users get files that were compiled one by one, with all warnings.
function(compile_folders_at_once target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${THINREDUCE_BATCHES}
                                             UNITY_BUILD_MODE GROUP)
  target_compile_options(${target} PRIVATE -Wno-shadow -Wno-subobject-linkage)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    file(STRINGS ${source} kernel REGEX HWY_TARGET_INCLUDE LIMIT_COUNT 1)
    if(NOT kernel AND source MATCHES "/thinreduce/(kernels|wire|collective|method|methods|plan)/")
      cmake_path(GET source PARENT_PATH folder)
      cmake_path(RELATIVE_PATH folder BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
      string(REPLACE "/" "_" group ${folder})
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
    endif()
  endforeach()
endfunction()
