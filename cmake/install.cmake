# Serves `make install` and find_package(thinreduce).
include(CMakePackageConfigHelpers)

# Before 1.0 every minor version may change the binary interface.
set_target_properties(thinreduce PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
install(TARGETS thinreduce EXPORT thinreduce-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILE_SET generated DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
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
