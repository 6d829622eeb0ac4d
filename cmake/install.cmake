# `make install` and find_package(thinreduce).
include(CMakePackageConfigHelpers)

set_target_properties(thinreduce PROPERTIES VERSION ${PROJECT_VERSION}
                                            SOVERSION ${PROJECT_VERSION_MAJOR})
install(TARGETS thinreduce EXPORT thinreduce-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
# What needs the headers of a backend or of the vector library is not for users.
install(DIRECTORY thinreduce DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h"
        PATTERN "*-inl.h" EXCLUDE
        PATTERN "dispatch.h" EXCLUDE
        PATTERN "gloo_transport.h" EXCLUDE
        PATTERN "tcp_store*.h" EXCLUDE)
install(EXPORT thinreduce-targets NAMESPACE thinreduce::
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinreduce)

configure_package_config_file(cmake/thinreduceConfig.cmake.in
  ${PROJECT_BINARY_DIR}/thinreduceConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinreduce)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/thinreduceConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/thinreduceConfig.cmake
              ${PROJECT_BINARY_DIR}/thinreduceConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/thinreduce)
