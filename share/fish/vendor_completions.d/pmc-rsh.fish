complete -c pmc-rsh -s l -d 'User' -r
complete -c pmc-rsh -s o -d 'Setting of ssh' -r
complete -c pmc-rsh -s p -d 'Port' -r
complete -c pmc-rsh -s n -d 'The command reads nothing'
complete -c pmc-rsh -s x -d 'Taken, without effect, as the next ones'
complete -c pmc-rsh -s q -d 'Quiet'
