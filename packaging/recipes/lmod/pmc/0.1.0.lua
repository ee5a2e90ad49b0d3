-- The module file for Lmod, for a tarball that was unpacked to `prefix`.

local prefix = os.getenv("PMC_PREFIX") or "/opt/pmc/0.1.0"

help([[
pmc plans Pegasus workflows and runs them as one batch job. Begin with `pmc init` and `man pmc`.
For scripts that use Pegasus.api, load the module with PMC_SHIMS=1: programs such as pegasus-plan are then ours.
]])
whatis("Name: pmc")
whatis("Version: 0.1.0")
whatis("Description: Pegasus workflows as one batch job, without HTCondor and Java")

prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("MANPATH", pathJoin(prefix, "share/man"))
prepend_path("LIBRARY_PATH", pathJoin(prefix, "lib"))
prepend_path("CPATH", pathJoin(prefix, "include"))
if os.getenv("PMC_SHIMS") then
    prepend_path("PATH", pathJoin(prefix, "share/pegasus-shims/bin"))
end
