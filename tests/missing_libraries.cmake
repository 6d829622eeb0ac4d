# A build without Highway and fmt ends with one error that names the packages of both.
#   cmake -DSOURCE=... -DFOLDER=... -P missing_libraries.cmake
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${FOLDER} -DTHINREDUCE_DEVELOPER=OFF
          -DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON -DCMAKE_DISABLE_FIND_PACKAGE_fmt=ON
  RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE text)
if(code EQUAL 0)
  message(FATAL_ERROR "CMake found libraries that it was told not to find")
endif()
foreach(line "Highway: apt install libhwy-dev; dnf install highway-devel; brew install highway"
             "fmt: apt install libfmt-dev; dnf install fmt-devel; brew install fmt")
  string(FIND "${text}" "${line}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "'${line}' is not in the error:\n${text}")
  endif()
endforeach()
if(text MATCHES "xxHash:|Eigen 3:")
  message(FATAL_ERROR "The error names a library that is there:\n${text}")
endif()
