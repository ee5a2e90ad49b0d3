complete -c pegasus-transfer -s f -l file -d 'Read the specification from FILE instead of stdin' -r -F
complete -c pegasus-transfer -l part -d 'Read only LENGTH bytes of FILE, from byte START on: large plans keep the specifications of all tasks in one file' -r
complete -c pegasus-transfer -s m -l max-attempts -d 'Try every transfer up to N times' -r
complete -c pegasus-transfer -s n -l threads -d 'Transfer N files at a time [default: PEGASUS_TRANSFER_THREADS, else 8]' -r
complete -c pegasus-transfer -l retry-wait -d 'Wait SECONDS (after a network error: 30 times as long) before the second attempt, four times as long before the third, …' -r
complete -c pegasus-transfer -l timeout -d 'Give up a connection that is silent for SECONDS' -r
complete -c pegasus-transfer -s s -l symlink -d 'Make symbolic links instead of copies where source and destination are local files'
complete -c pegasus-transfer -s d -l debug -d 'Log more'
complete -c pegasus-transfer -s h -l help -d 'Print help'
complete -c pegasus-transfer -s V -l version -d 'Print version'
