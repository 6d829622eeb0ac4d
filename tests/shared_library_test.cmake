# Checks that a shared library exports nothing but the API, and runs a program with it.
#   cmake -DNM=nm -DLIBRARY=libthinreduce.so -DPROGRAM=consumer -P shared_library_test.cmake
cmake_minimum_required(VERSION 3.25)  # for IN_LIST
set(api
  BrokenInvariant BucketHandle BucketLayout Channel Deadline Error ErrorCode GlooOptions Guard Link
  LocalSteps LocalStepsOptions
  MethodDescription Operation OptionDescription PresetDescription Report Session SessionOptions SpecDescription
  Reconfiguration Secret StageTimes Tensor Traffic Transport authenticate connect_gloo connect_mpi connect_threads describe_methods
  describe_spec gloo_options_from_environment guard_of have_gloo have_mpi redistribute simd_target
  simd_targets throttle to_string under_mpi use_simd_target version WaitLimits)

execute_process(COMMAND ${NM} -DC --defined-only ${LIBRARY} OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE ";" "," symbols "${symbols}")
string(REPLACE "\n" ";" symbols "${symbols}")
list(FILTER symbols INCLUDE REGEX "thinreduce::")
# The compiler exports the type information of std's templates, whatever their arguments are.
list(FILTER symbols EXCLUDE REGEX " V (typeinfo|typeinfo name|vtable) for std::")
if(NOT symbols)
  message(FATAL_ERROR "${LIBRARY} exports nothing")
endif()
foreach(symbol IN LISTS symbols)
  string(REGEX MATCHALL "thinreduce::[A-Za-z_]+" names "${symbol}")
  foreach(name ${names})
    string(REPLACE "thinreduce::" "" name ${name})
    if(NOT name IN_LIST api OR symbol MATCHES "Worker")
      message(SEND_ERROR "internal symbol is exported: ${symbol}")
    endif()
  endforeach()
endforeach()
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE out COMMAND_ERROR_IS_FATAL ANY)
if(NOT out MATCHES "bytes instead of")
  message(FATAL_ERROR "${PROGRAM} printed: ${out}")
endif()
