//! The command that runs a program in a container.

use std::ffi::OsString;
use std::path::Path;

use super::Engine;

/// A container to be started.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// The program that runs it.
    pub(super) engine: Engine,
    /// File of that program.
    pub(super) program: &'a Path,
    /// Command before it.
    pub(super) launcher: &'a [String],
    /// Name of the container, for engines that have names.
    pub(super) name: &'a str,
    /// Directory of the job on the node, and in the container.
    pub(super) directory: (&'a Path, &'a str),
    /// Work directory that other jobs share; it has the same path in the container.
    pub(super) shared: Option<&'a Path>,
    /// Further directories, `HERE:THERE[:OPTIONS]`.
    pub(super) mounts: &'a [String],
    /// Options of the user.
    pub(super) arguments: &'a [String],
    /// The job has GPUs.
    pub(super) gpus: bool,
    /// User and group.
    pub(super) user: (u32, u32),
    /// Name or file of the image.
    pub(super) image: &'a str,
    /// What is run in it, at least one word.
    pub(super) command: &'a [String],
}

impl Call<'_> {
    /// Returns the words of the command.
    pub(super) fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = self.launcher.iter().map(OsString::from).collect();
        words.push(self.program.into());
        match self.engine {
            Engine::Docker | Engine::Podman => self.docker(&mut words),
            Engine::Apptainer => self.apptainer(&mut words),
            Engine::Shifter => self.shifter(&mut words),
        }
        words
    }

    /// Returns all mounts: the directory of the job first.
    fn mounts(&self) -> Vec<OsString> {
        let mount = |here: &Path, there: &Path| {
            let mut mount = here.as_os_str().to_owned();
            mount.push(":");
            mount.push(there);
            mount
        };
        let mut mounts = vec![mount(self.directory.0, Path::new(self.directory.1))];
        mounts.extend(self.shared.map(|shared| mount(shared, shared)));
        mounts.extend(self.mounts.iter().map(OsString::from));
        mounts
    }

    fn docker(&self, words: &mut Vec<OsString>) {
        // Without a daemon, root in the container is the user outside, to whom the job's files belong.
        let (user, group) = match self.engine {
            Engine::Podman => (0, 0),
            _ => self.user,
        };
        words.extend(["run", "--rm", "--user"].map(OsString::from));
        words.push(format!("{user}:{group}").into());
        for mount in self.mounts() {
            words.push("-v".into());
            words.push(mount);
        }
        let directory = self.shared.unwrap_or(Path::new(self.directory.1));
        words.push("-w".into());
        words.push(directory.into());
        match (self.gpus, self.engine) {
            (false, _) => {}
            (true, Engine::Podman) => words.extend(["--device", "nvidia.com/gpu=all"].map(OsString::from)),
            (true, _) => words.extend(["--gpus", "all"].map(OsString::from)),
        }
        let (first, rest) = self
            .command
            .split_first()
            .map_or(("", &[][..]), |(first, rest)| (first, rest));
        words.extend(["--entrypoint", first].map(OsString::from));
        // Those of the user come last, so that they count.
        words.extend(self.arguments.iter().map(OsString::from));
        words.extend(["--name", self.name, self.image].map(OsString::from));
        words.extend(rest.iter().map(OsString::from));
    }

    fn apptainer(&self, words: &mut Vec<OsString>) {
        words.extend(["exec", "--no-home"].map(OsString::from));
        if self.gpus {
            words.push("--nv".into());
        }
        for mount in self.mounts() {
            words.push("--bind".into());
            words.push(mount);
        }
        words.extend(self.arguments.iter().map(OsString::from));
        words.push(self.image.into());
        words.extend(self.command.iter().map(OsString::from));
    }

    fn shifter(&self, words: &mut Vec<OsString>) {
        words.extend(["--image", self.image, "--volume"].map(OsString::from));
        let mut mounts = self.mounts();
        // As in the original, the directory of the job comes last.
        let first = mounts.remove(0);
        mounts.push(first);
        words.push(mounts.join(";".as_ref()));
        let directory = self.shared.unwrap_or(Path::new(self.directory.1));
        let mut option = OsString::from("--workdir=");
        option.push(directory);
        words.push(option);
        words.extend(self.arguments.iter().map(OsString::from));
        words.extend(self.command.iter().map(OsString::from));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(engine: Engine, shared: bool, gpus: bool) -> String {
        let list = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        let call = Call {
            engine,
            program: Path::new("/bin/engine"),
            launcher: &list(&["srun", "-n", "4"]),
            name: "j-1",
            directory: (Path::new("/tmp/pegasus.1"), "/scratch"),
            shared: shared.then_some(Path::new("/lustre/run")),
            mounts: &list(&["/data:/data:ro"]),
            arguments: &list(&["--shm-size=1g", "-B", "/opt"]),
            gpus,
            user: (7, 8),
            image: "box",
            command: &list(&["./ld", "lite"]),
        };
        let words: Vec<_> = call.words().into_iter().map(|w| w.into_string()).collect();
        words
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .unwrap()
            .join(" ")
    }

    #[test]
    fn each_engine_gets_its_options() {
        assert_eq!(
            words(Engine::Docker, false, true),
            "srun -n 4 /bin/engine run --rm --user 7:8 -v /tmp/pegasus.1:/scratch -v /data:/data:ro -w /scratch --gpus all \
             --entrypoint ./ld --shm-size=1g -B /opt --name j-1 box lite"
        );
        assert_eq!(
            words(Engine::Podman, true, true),
            "srun -n 4 /bin/engine run --rm --user 0:0 -v /tmp/pegasus.1:/scratch -v /lustre/run:/lustre/run -v \
             /data:/data:ro -w /lustre/run --device nvidia.com/gpu=all --entrypoint ./ld --shm-size=1g -B /opt --name j-1 \
             box lite"
        );
        assert_eq!(
            words(Engine::Apptainer, true, true),
            "srun -n 4 /bin/engine exec --no-home --nv --bind /tmp/pegasus.1:/scratch --bind /lustre/run:/lustre/run \
             --bind /data:/data:ro --shm-size=1g -B /opt box ./ld lite"
        );
        assert_eq!(
            words(Engine::Shifter, false, false),
            "srun -n 4 /bin/engine --image box --volume /data:/data:ro;/tmp/pegasus.1:/scratch --workdir=/scratch \
             --shm-size=1g -B /opt ./ld lite"
        );
    }
}
