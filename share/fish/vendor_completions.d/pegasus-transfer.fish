complete -c pegasus-transfer -s f -l file -d 'Read the specification from FILE instead of stdin' -r -F
complete -c pegasus-transfer -l part -d 'Read only LENGTH bytes of FILE, starting at byte START; large plans keep all specifications in one file' -r
complete -c pegasus-transfer -s m -l max-attempts -d 'Maximum attempts of each transfer' -r
complete -c pegasus-transfer -s n -l threads -d 'Maximum parallel transfers [default: PEGASUS_TRANSFER_THREADS, else 8]' -r
complete -c pegasus-transfer -l checksums-from -d 'Compare copies with the checksums in these metadata files, instead of those in the working directory' -r -F
complete -c pegasus-transfer -l checksums-to -d 'Write the checksums that entries ask for into this metadata file, too' -r -F
complete -c pegasus-transfer -l retry-wait -d 'Wait before the second attempt; four times as long before each further one. Network errors wait 30 times as long' -r
complete -c pegasus-transfer -l timeout -d 'Close a connection after SECONDS without data' -r
complete -c pegasus-transfer -l min-rate -d 'Close a connection on which fewer BYTES a second arrive, on average over the time of --timeout; 0: no limit' -r
complete -c pegasus-transfer -s s -l symlink -d 'Create symbolic links instead of copies if source and destination are local files'
complete -c pegasus-transfer -s d -l debug -d 'Log details for debugging'
complete -c pegasus-transfer -s h -l help -d 'Print help'
complete -c pegasus-transfer -s V -l version -d 'Print version'
