complete -c pegasus-integrity -l generate -d 'Print checksums as sha256sum does' -r
complete -c pegasus-integrity -l generate-yaml -d 'Print checksums as lines of an invocation record' -r
complete -c pegasus-integrity -l generate-fullstat-yaml -d 'Append whole entries of an invocation record to the file of KICKSTART_INTEGRITY_DATA, or print them' -r
complete -c pegasus-integrity -l generate-xmls -d 'Accepted, does nothing' -r
complete -c pegasus-integrity -l generate-fullstat-xmls -d 'Accepted, does nothing' -r
complete -c pegasus-integrity -l verify -d 'Compare files with the known checksums; "stdin": the list comes from standard input' -r
complete -c pegasus-integrity -l print-timings -d 'With --verify: leave a record in the directory of PEGASUS_MULTIPART_DIR'
complete -c pegasus-integrity -l debug -d 'Ignored'
complete -c pegasus-integrity -s h -l help -d 'Print help (see more with \'--help\')'
complete -c pegasus-integrity -s V -l version -d 'Print version'
