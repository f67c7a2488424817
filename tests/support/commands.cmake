# run_command(<variable> <command>...): its exit code, and all that it prints in <variable>_text.
function(run_command out)
  execute_process(
    COMMAND ${ARGN}
    RESULT_VARIABLE code
    OUTPUT_VARIABLE text
    ERROR_VARIABLE text)
  set(${out}
      "${code}"
      PARENT_SCOPE)
  set(${out}_text
      "${text}"
      PARENT_SCOPE)
endfunction()

# must_run(<what> <command>...): all that it prints in must_run_text; an error with that text where it fails.
function(must_run what)
  run_command(result ${ARGN})
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${result_text}")
  endif()
  set(must_run_text
      "${result_text}"
      PARENT_SCOPE)
endfunction()
