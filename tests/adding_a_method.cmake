# Does literally what docs/adding-a-method.md says, in a folder of its own: takes the files out of the page, changes a
# copy of the registry, and builds the page's test. The library's own registry stays out of the link,
# because the changed copy comes first.
set(page ${PROJECT_SOURCE_DIR}/docs/adding-a-method.md)
set(registry ${PROJECT_SOURCE_DIR}/thinreduce/methods/registry.cc)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${page} ${registry})
set(toy ${CMAKE_CURRENT_BINARY_DIR}/adding_a_method)

file(READ ${page} text)
set(method_lines 0)
foreach(name sign.h sign.cc sign_test.cc)
  string(FIND "${text}" "`thinreduce/methods/${name}`\n\n```cpp\n" start)
  if(start EQUAL -1)
    message(FATAL_ERROR "${page} has no thinreduce/methods/${name}")
  endif()
  string(SUBSTRING "${text}" ${start} -1 rest)
  string(FIND "${rest}" "```cpp\n" start)
  math(EXPR start "${start} + 7")
  string(SUBSTRING "${rest}" ${start} -1 rest)
  string(FIND "${rest}" "```" end)
  string(SUBSTRING "${rest}" 0 ${end} code)
  file(CONFIGURE OUTPUT ${toy}/thinreduce/methods/${name} CONTENT "${code}" @ONLY)
  if(NOT name STREQUAL sign_test.cc)
    string(REGEX MATCHALL "\n" newlines "${code}")
    list(LENGTH newlines lines)
    math(EXPR method_lines "${method_lines} + ${lines}")
  endif()
endforeach()
if(method_lines GREATER_EQUAL 80)
  message(FATAL_ERROR "${page}: the method has ${method_lines} lines; it should have fewer than 80")
endif()

file(READ ${registry} text)
string(REPLACE "#include \"thinreduce/methods/qsgd.h\"\n"
       "#include \"thinreduce/methods/qsgd.h\"\n#include \"thinreduce/methods/sign.h\"\n" changed "${text}")
string(REPLACE "powersgd_info()," "powersgd_info(), sign_info()," changed "${changed}")
file(CONFIGURE OUTPUT ${toy}/registry.cc CONTENT "${changed}" @ONLY)

add_executable(adding_a_method_test ${toy}/thinreduce/methods/sign.cc
               ${toy}/thinreduce/methods/sign_test.cc ${toy}/registry.cc)
target_include_directories(adding_a_method_test PRIVATE ${toy})
target_link_libraries(adding_a_method_test PRIVATE thinreduce_test_main)
add_test(NAME adding_a_method COMMAND adding_a_method_test)
