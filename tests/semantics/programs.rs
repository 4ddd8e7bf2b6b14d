//! Programs and libraries that are run from the mount.

use crate::common::{As, as_both};
use crate::twin::{Twin, wait_for};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::process::{Child, Command, Stdio};

struct Running(Child);

impl Running {
    fn start(path: &std::path::Path) -> Running {
        let child = Command::new(path).arg("300").stdout(Stdio::null()).spawn().unwrap();
        let exe = format!("/proc/{}/exe", child.id());
        wait_for("the program", || fs::read_link(&exe).is_ok_and(|exe| exe.file_name() == path.file_name()));
        Running(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn open(path: &std::path::Path, flags: OFlags) -> rustix::io::Result<()> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map(drop)
}

/// Seen to fail, by an empty file under a running program, when opens for running are not counted: the kernel asks
/// for O_RDONLY|O_TRUNC before it looks whether the program runs.
#[test]
fn a_running_program_is_neither_written_nor_emptied_nor_converted() {
    as_both(|user| {
        let modes: &[&[&str]] = if user == As::Root { &[&[], &["--no-passthrough"]] } else { &[&[]] };
        for flags in modes {
            let twin = Twin::with_flags(user, flags);
            let path = twin.mount.at("program");
            fs::copy("/bin/sleep", &path).unwrap();
            for stub in [false, true] {
                if stub {
                    twin.settle(&["program"]);
                }
                let mut program = Running::start(&path);
                for flags in [
                    OFlags::WRONLY,
                    OFlags::RDWR,
                    OFlags::WRONLY | OFlags::TRUNC,
                    OFlags::RDWR | OFlags::APPEND,
                    OFlags::RDONLY | OFlags::TRUNC,
                ] {
                    assert_eq!(open(&path, flags), Err(Errno::TXTBSY), "{flags:?}, stub: {stub}");
                }
                let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
                // SAFETY: the path is ended by a zero byte and lives until the call returns.
                assert_eq!(unsafe { libc::truncate(name.as_ptr(), 0) }, -1);
                let error = std::io::Error::last_os_error();
                assert_eq!(error.raw_os_error(), Some(libc::ETXTBSY));
                twin.mount.settle();
                assert_eq!(twin.mount.is_stub("program"), stub, "as it was");
                assert!(program.0.try_wait().unwrap().is_none());
                assert!(fs::read(&path).unwrap() == fs::read("/bin/sleep").unwrap());
                drop(program);
                // It has ended: now all of it works again.
                open(&path, OFlags::RDWR).unwrap();
                open(&path, OFlags::RDONLY | OFlags::TRUNC).unwrap();
                assert_eq!(fs::metadata(&path).unwrap().len(), 0);
                fs::copy("/bin/sleep", &path).unwrap();
            }
        }
    });
}

#[test]
fn programs_and_libraries_run_from_stubs() {
    as_both(|user| {
        let twin = Twin::new(user);
        twin.run(
            "cp /bin/echo program; printf '#!/bin/sh\\necho script $1\\n%8192s' '' > script; chmod +x script
            printf 'int answer(void) { return 42; }' > lib.c
            printf 'int answer(void); int main(void) { return answer() != 42; }' > main.c
            cc -shared -fPIC -o libanswer.so lib.c && cc -o main main.c -L. -lanswer && echo made",
        );
        twin.settle(&["program", "script", "libanswer.so", "main"]);
        let script = "./program it runs; ./script too; LD_LIBRARY_PATH=. ./main && echo linked";
        assert!(twin.run(script).contains("linked"));
        twin.mount.remount();
        twin.run(script);
        twin.settle(&["program", "script", "libanswer.so", "main"]);
    });
}
