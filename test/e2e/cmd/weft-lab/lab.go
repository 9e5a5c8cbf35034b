// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weft-storage/weft/test/e2e/lab"
)

func newUpCommand() *cobra.Command {
	var opts lab.Options
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the lab, or what of it does not run; builds what is missing first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := newBuilder()
			if err != nil {
				return err
			}
			dir, err := lab.DefaultDir()
			if err != nil {
				return err
			}
			l, err := lab.Up(cmd.Context(), dir, b, opts)
			if err != nil {
				return err
			}
			defer l.Close()
			if opts.NoCluster {
				b.Progress.Note("up: %v; run a command with: weft-lab exec %s -- uname -a", l.Nodes(), l.Nodes()[0])
				return nil
			}
			b.Progress.Note("up: %v; export KUBECONFIG=%s", l.Nodes(), l.Kubeconfig())
			return nil
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&opts.Nodes, "nodes", 0, "number of nodes (default 2, or as many as the running lab has)")
	flags.BoolVar(&opts.NoCluster, "no-cluster", false, "machines only, no Kubernetes")
	flags.BoolVar(&opts.Weft, "weft", false, "put the project's image, built from bin/, on the nodes of a new lab")
	flags.BoolVar(&opts.NoRDMA, "no-rdma", false, "no soft RDMA device on the nodes")
	flags.BoolVar(&opts.IOMMU, "iommu", false, "put an IOMMU between the nodes and their drives, as VFIO needs")
	flags.IntVar(&opts.MemoryMiB, "memory", 0, "memory of each node in MiB (default 1536)")
	return cmd
}

func newDownCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "down",
		Short: "Stop the lab and remove its disks; logs stay",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := lab.DefaultDir()
			if err != nil {
				return err
			}
			return lab.Down(cmd.Context(), dir)
		},
	}
}

// openLab opens the lab of this repository.
func openLab() (*lab.Lab, error) {
	dir, err := lab.DefaultDir()
	if err != nil {
		return nil, err
	}
	return lab.Open(dir)
}

// inLab opens the lab of this repository for what a command does.
func inLab(do func(cmd *cobra.Command, l *lab.Lab, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		l, err := openLab()
		if err != nil {
			return err
		}
		defer l.Close()
		return do(cmd, l, args)
	}
}

func newStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the lab's processes; fails when one of them is not running",
		Args:  cobra.NoArgs,
		RunE: inLab(func(cmd *cobra.Command, l *lab.Lab, _ []string) error {
			processes, err := l.Processes()
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			var dead []string
			for _, p := range processes {
				state := "running"
				if !p.Running {
					state = "dead"
					dead = append(dead, p.Name)
				}
				_, _ = fmt.Fprintf(table, "%s\t%s\t%d\n", p.Name, state, p.PID)
			}
			_, _ = fmt.Fprintf(table, "folder\t%s\nnodes\t%v\n", l.Dir, l.Nodes())
			if err := table.Flush(); err != nil {
				return err
			}
			if len(dead) > 0 {
				return fmt.Errorf("not running: %v; `weft-lab up` starts them again", dead)
			}
			return nil
		}),
	}
}

func newExecCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "exec NODE -- COMMAND [ARGUMENT...]",
		Short: "Run a command on a node as root, also while its network is cut",
		Args:  cobra.MinimumNArgs(2),
		RunE: inLab(func(cmd *cobra.Command, l *lab.Lab, args []string) error {
			streams := lab.Streams{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
			err := l.Exec(cmd.Context(), args[0], streams, args[1:]...)
			var exit *lab.ExitError
			if errors.As(err, &exit) {
				return exitError(exit.Status)
			}
			return err
		}),
	}
}

func newPowerCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "power NODE on|off|shutdown",
		Short:     "Cut or restore the power of a node, or shut the node down",
		Args:      cobra.ExactArgs(2),
		ValidArgs: []string{"on", "off", "shutdown"},
		RunE: inLab(func(cmd *cobra.Command, l *lab.Lab, args []string) error {
			switch args[1] {
			case "off":
				return l.PowerOff(args[0])
			case "on":
				if err := l.PowerOn(args[0]); err != nil {
					return err
				}
				return l.WaitForShell(cmd.Context(), args[0])
			case "shutdown":
				return l.Shutdown(cmd.Context(), args[0])
			default:
				return fmt.Errorf("power %s %q: use on, off or shutdown", args[0], args[1])
			}
		}),
	}
}

func newNetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "net NODE cut|restore",
		Short: "Cut a node's network, or restore it",
		Args:  cobra.ExactArgs(2),
		RunE: inLab(func(_ *cobra.Command, l *lab.Lab, args []string) error {
			switch args[1] {
			case "cut":
				return l.CutNetwork(args[0])
			case "restore":
				return l.RestoreNetwork(args[0])
			default:
				return fmt.Errorf("net %s %q: use cut or restore", args[0], args[1])
			}
		}),
	}
}

func newAPICommand() *cobra.Command {
	return &cobra.Command{
		Use:       "api freeze|thaw",
		Short:     "Let the API server answer nothing while its connections stay, or let it go on",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"freeze", "thaw"},
		RunE: inLab(func(cmd *cobra.Command, l *lab.Lab, args []string) error {
			if args[0] == "freeze" {
				return l.FreezeAPI(cmd.Context())
			}
			return l.ThawAPI()
		}),
	}
}

func newEtcdCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "etcd backup|restore DIRECTORY",
		Short: "Back up the objects of the API, or restore them, and restart what watches them",
		Args:  cobra.ExactArgs(2),
		RunE: inLab(func(cmd *cobra.Command, l *lab.Lab, args []string) error {
			switch args[0] {
			case "backup":
				return l.BackUp(cmd.Context(), args[1])
			case "restore":
				return l.RestoreBackup(cmd.Context(), args[1])
			default:
				return fmt.Errorf("etcd %q: use backup or restore", args[0])
			}
		}),
	}
}

func newDmesgCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "dmesg NODE",
		Short: "Print a node's kernel log; of a node that does not answer, its console",
		Args:  cobra.ExactArgs(1),
		RunE: inLab(func(cmd *cobra.Command, l *lab.Lab, args []string) error {
			log, err := l.KernelLog(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), log)
			return err
		}),
	}
}

func newLogsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "logs DIRECTORY",
		Short: "Collect the logs of every component in a directory",
		Args:  cobra.ExactArgs(1),
		RunE: inLab(func(cmd *cobra.Command, l *lab.Lab, args []string) error {
			return l.CollectLogs(cmd.Context(), args[0])
		}),
	}
}

func newKubeconfigCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of the cluster's kubeconfig",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := openLab()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), l.Kubeconfig())
			return err
		},
	}
}
