# Installs the build to a fresh folder, then configures, builds and runs tests/consumer against it,
# and compiles each installed header alone.
#   cmake -DBUILD=... -DSOURCE=... -DWORK=... -P consumer_test.cmake
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE out)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGN} failed (${code}):\n${out}")
  endif()
  set(output "${out}" PARENT_SCOPE)
endfunction()

# These pages show the programs.
function(check_page page file)
  file(READ ${SOURCE}/${file} program)
  file(READ ${SOURCE}/../../${page} text)
  string(FIND "${text}" "${program}" found)
  if(found EQUAL -1)
    message(FATAL_ERROR "${page} must show the same program as ${SOURCE}/${file}")
  endif()
endfunction()
check_page(README.md main.cc)
check_page(docs/api.md training.cc)

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE} -B ${WORK}/build -DCMAKE_PREFIX_PATH=${WORK}/prefix
    -DCMAKE_BUILD_TYPE=Release)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${WORK}/build/main)
if(NOT output MATCHES "^[0-9]+ bytes instead of 4000000")
  message(FATAL_ERROR "main printed: ${output}")
endif()
run(${WORK}/build/training)
if(NOT output MATCHES "thinreduce [0-9.]+, [A-Za-z0-9]+: 3 states")
  message(FATAL_ERROR "training printed: ${output}")
endif()
run(${WORK}/prefix/bin/thinreduce methods)

file(GLOB_RECURSE headers ${WORK}/prefix/include/*)
list(LENGTH headers count)
if(count GREATER 16)
  message(FATAL_ERROR "${count} headers are installed; an API of at most 16 can be kept stable")
endif()
run(${CMAKE_COMMAND} -G Ninja -S ${SOURCE}/../headers -B ${WORK}/headers
    -DCMAKE_PREFIX_PATH=${WORK}/prefix -DHEADERS=${WORK}/prefix/include)
run(${CMAKE_COMMAND} --build ${WORK}/headers)
