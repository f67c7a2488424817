# cmake -DPROGRAM=<path> [-DARGUMENTS=<list>] -DEXPECTED=<exit code> [-DOUTPUT=<file>] [-DMESSAGE=<regex>] -P exit_code.cmake
#
# Runs a program, with its standard output going to a file where one is given, and fails unless it ends with the expected
# exit code and, where a message is given, with exactly one line on its standard error that matches.
cmake_minimum_required(VERSION 3.25)

set(redirection "")
if(OUTPUT)
  set(redirection OUTPUT_FILE "${OUTPUT}")
endif()
execute_process(COMMAND "${PROGRAM}" ${ARGUMENTS} RESULT_VARIABLE code ERROR_VARIABLE errors ${redirection})
if(NOT code STREQUAL EXPECTED)
  message(FATAL_ERROR "exit_code: ${PROGRAM} ended with ${code}, expected ${EXPECTED}: ${errors}")
endif()
if(MESSAGE AND NOT errors MATCHES "^${MESSAGE}[^\n]*\n$")
  message(FATAL_ERROR "exit_code: ${PROGRAM} said '${errors}', expected one line that begins with ${MESSAGE}")
endif()
