package deploy

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// strict decodes Kubernetes' own kinds and those of the Prometheus operator that we
// use, and refuses fields that are unknown or given twice.
var strict = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme, addMonitoring} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
}()

// decode reads all documents, by kind and name.
func decode(t *testing.T, manifests []byte) map[string]runtime.Object {
	t.Helper()
	out := map[string]runtime.Object{}
	documents := yaml.NewYAMLReader(newReader(manifests))
	for {
		doc, err := documents.Read()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(bytes.Trim(doc, "-\n")) == 0 {
			continue
		}
		object, kind, err := strict.Decode(doc, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		name := kind.Kind + "/" + object.(metav1.Object).GetName()
		if out[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		out[name] = object
	}
}

func kustomize(t *testing.T, dir string) map[string]runtime.Object {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, manifests)
}

func template(t *testing.T, release string, values map[string]any) map[string]runtime.Object {
	t.Helper()
	chart, err := loader.Load("chart")
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: release, Namespace: "shop", Revision: 1, IsInstall: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		t.Fatal(err)
	}
	var manifests strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") {
			fmt.Fprintf(&manifests, "---\n%s\n", files[name])
		}
	}
	return decode(t, []byte(manifests.String()))
}

func kinds(objects map[string]runtime.Object) []string { return slices.Sorted(maps.Keys(objects)) }

func statefulSet(t *testing.T, objects map[string]runtime.Object, name string) *appsv1.StatefulSet {
	t.Helper()
	s, ok := objects["StatefulSet/"+name].(*appsv1.StatefulSet)
	if !ok {
		t.Fatalf("no StatefulSet %s in %v", name, kinds(objects))
	}
	return s
}

// A field that Kubernetes does not know is refused, or a typing error would be
// nothing but a default.
func TestDecoderIsStrict(t *testing.T) {
	for _, doc := range []string{
		"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {publishNotReadyAdresses: true}\n",
		"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {type: ClusterIP, type: NodePort}\n",
		"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: x}\nspec: {groups: [{name: g, rules: [{alert: A, expresion: up}]}]}\n",
	} {
		if _, _, err := strict.Decode([]byte(doc), nil, nil); err == nil {
			t.Errorf("taken:\n%s", doc)
		}
	}
}

func TestOverlays(t *testing.T) {
	common := []string{"NetworkPolicy/ebb", "PodDisruptionBudget/ebb", "Service/ebb", "Service/ebb-peers", "ServiceAccount/ebb", "StatefulSet/ebb"}
	for _, c := range []struct {
		overlay, namespace, expect string
		replicas                   int32
		more                       []string
	}{
		{"dev", "ebb-dev", "1", 1, nil},
		{"production", "ebb", "3", 3, []string{"ConfigMap/ebb-dashboard", "PrometheusRule/ebb", "ServiceMonitor/ebb"}},
		{"production-secret", "ebb", "3", 3, []string{"ConfigMap/ebb-dashboard", "PrometheusRule/ebb", "ServiceMonitor/ebb"}},
		{"production-tls", "ebb", "3", 3, []string{"ConfigMap/ebb-dashboard", "PrometheusRule/ebb", "ServiceMonitor/ebb"}},
	} {
		t.Run(c.overlay, func(t *testing.T) {
			objects := kustomize(t, "kustomize/overlays/"+c.overlay)
			want := append(append([]string{"Namespace/" + c.namespace}, common...), c.more...)
			slices.Sort(want)
			if diff := cmp.Diff(want, kinds(objects)); diff != "" {
				t.Error(diff)
			}
			for name, o := range objects {
				if ns := o.(metav1.Object).GetNamespace(); ns != c.namespace && !strings.HasPrefix(name, "Namespace/") {
					t.Errorf("%s is in namespace %q", name, ns)
				}
			}
			set := statefulSet(t, objects, "ebb")
			if *set.Spec.Replicas != c.replicas || envOf(set)["EBB_BOOTSTRAP_EXPECT"] != c.expect {
				t.Errorf("%d replicas, a cluster born with %s", *set.Spec.Replicas, envOf(set)["EBB_BOOTSTRAP_EXPECT"])
			}
			checkSet(t, set)
			checkAround(t, objects, set)
		})
	}
}

// In production a zone that fails takes no majority with it.
func TestProductionKeepsZonesApart(t *testing.T) {
	set := statefulSet(t, kustomize(t, "kustomize/overlays/production"), "ebb")
	spread := map[string]corev1.TopologySpreadConstraint{}
	if n := len(set.Spec.Template.Spec.TopologySpreadConstraints); n != 2 {
		t.Errorf("%d constraints: those of the base are to be replaced", n)
	}
	for _, c := range set.Spec.Template.Spec.TopologySpreadConstraints {
		spread[c.TopologyKey] = c
	}
	zone := spread[corev1.LabelTopologyZone]
	if zone.MaxSkew != 1 || zone.MinDomains == nil || *zone.MinDomains != 3 || zone.WhenUnsatisfiable != corev1.DoNotSchedule {
		t.Errorf("zones: %+v", zone)
	}
	if host := spread[corev1.LabelHostname]; host.MaxSkew != 1 || host.WhenUnsatisfiable != corev1.DoNotSchedule {
		t.Errorf("machines: %+v", host)
	}
}

func TestChartLints(t *testing.T) {
	version, err := chartutil.ParseKubeVersion("v1.36.0")
	if err != nil {
		t.Fatal(err)
	}
	for _, values := range []map[string]any{nil, {"monitoring": map[string]any{"enabled": true}}} {
		for _, m := range lint.AllWithKubeVersion("chart", values, "shop", version).Messages {
			if m.Severity > support.InfoSev {
				t.Error(m)
			}
		}
	}
}

// A chart refuses values that it does not know.
func TestChartRefusesUnknownValues(t *testing.T) {
	chart, err := loader.Load("chart")
	if err != nil {
		t.Fatal(err)
	}
	for _, values := range []map[string]any{
		{"replicaCount": 3}, {"replicas": "three"}, {"bootstrapExpect": 0}, {"env": map[string]any{"ebb-node": "x"}}, {"tls": map[string]any{"cert": "x"}}, {"spread": map[string]any{"whenUnsatisfiable": "Perhaps"}},
	} {
		if _, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: "ebb"}, nil); err == nil {
			t.Errorf("%v is taken", values)
		}
	}
}

// The chart and the overlays for production are one thing said twice.
func TestChartIsTheProductionOverlay(t *testing.T) {
	values := map[string]any{"image": map[string]any{"tag": "v0.1.0"}, "monitoring": map[string]any{"enabled": true}}
	sameAsChart(t, "kustomize/overlays/production", values)
	values["clusterSecret"] = "ebb-cluster"
	sameAsChart(t, "kustomize/overlays/production-secret", values)
	delete(values, "clusterSecret")
	values["tls"] = map[string]any{"secret": "ebb-tls", "gossipSecret": "ebb-gossip"}
	sameAsChart(t, "kustomize/overlays/production-tls", values)
}

// sortLists puts what Kubernetes finds by name in one order.
func sortLists(pod *corev1.PodSpec) {
	c := &pod.Containers[0]
	slices.SortFunc(c.Env, func(a, b corev1.EnvVar) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(c.VolumeMounts, func(a, b corev1.VolumeMount) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(pod.Volumes, func(a, b corev1.Volume) int { return strings.Compare(a.Name, b.Name) })
}

func sameAsChart(t *testing.T, dir string, values map[string]any) {
	t.Helper()
	overlay, chart := kustomize(t, dir), template(t, "ebb", values)
	delete(overlay, "Namespace/ebb") // helm install --create-namespace
	if diff := cmp.Diff(kinds(overlay), kinds(chart)); diff != "" {
		t.Fatal(diff)
	}
	for name, want := range overlay {
		want, got := want.DeepCopyObject(), chart[name].DeepCopyObject()
		for _, o := range []runtime.Object{want, got} {
			meta := o.(metav1.Object)
			meta.SetLabels(nil) // the chart says more of itself
			meta.SetNamespace("")
			if set, ok := o.(*appsv1.StatefulSet); ok {
				container := &set.Spec.Template.Spec.Containers[0]
				if container.ImagePullPolicy == "" {
					container.ImagePullPolicy = corev1.PullIfNotPresent // the default for a tag that is not latest
				}
				sortLists(&set.Spec.Template.Spec)
			}
			if m, ok := o.(*ServiceMonitor); ok {
				m.Spec.Selector = nil // the overlay's finds by name, the chart's by release
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: overlay -, chart +\n%s", name, diff)
		}
	}
}

func TestChartOptions(t *testing.T) {
	objects := template(t, "counts", map[string]any{
		"replicas": 5, "shards": 128, "networkPolicy": false,
		"env":         map[string]any{"EBB_LOG_LEVEL": "debug"},
		"image":       map[string]any{"repository": "registry.example/ebb"},
		"storage":     map[string]any{"className": "fast", "size": "1Ti"},
		"spread":      map[string]any{"whenUnsatisfiable": "ScheduleAnyway"},
		"tolerations": []any{map[string]any{"key": "dedicated", "operator": "Exists"}},
	})
	if diff := cmp.Diff([]string{"PodDisruptionBudget/counts", "Service/counts", "Service/counts-peers", "ServiceAccount/counts", "StatefulSet/counts"}, kinds(objects)); diff != "" {
		t.Error(diff)
	}
	set := statefulSet(t, objects, "counts")
	checkSet(t, set)
	checkAround(t, objects, set)
	env := envOf(set)
	for name, want := range map[string]string{
		"EBB_SHARDS": "128", "EBB_LOG_LEVEL": "debug", "EBB_BOOTSTRAP_EXPECT": "3",
		"EBB_JOIN": "counts-peers.$(POD_NAMESPACE).svc:7071", "EBB_ADVERTISE_GRPC": "$(POD_NAME).counts-peers.$(POD_NAMESPACE).svc:7070",
	} {
		if env[name] != want {
			t.Errorf("%s=%q, want %q", name, env[name], want)
		}
	}
	claim := set.Spec.VolumeClaimTemplates[0].Spec
	if size := claim.Resources.Requests[corev1.ResourceStorage]; *claim.StorageClassName != "fast" || size.String() != "1Ti" {
		t.Errorf("volume: %+v", claim)
	}
	pod := set.Spec.Template.Spec
	if *set.Spec.Replicas != 5 || pod.Containers[0].Image != "registry.example/ebb:v0.1.0" || len(pod.Tolerations) != 1 ||
		pod.TopologySpreadConstraints[0].MinDomains != nil || pod.TopologySpreadConstraints[0].WhenUnsatisfiable != corev1.ScheduleAnyway {
		t.Errorf("%d replicas of %+v", *set.Spec.Replicas, pod)
	}
}

// checkSet holds a StatefulSet to what ebb needs and what has gone wrong for others.
func checkSet(t *testing.T, set *appsv1.StatefulSet) {
	t.Helper()
	say := func(ok bool, format string, args ...any) {
		t.Helper()
		if !ok {
			t.Errorf(format, args...)
		}
	}
	pod := set.Spec.Template.Spec
	c := pod.Containers[0]
	yes := func(b *bool) bool { return b != nil && *b }
	no := func(b *bool) bool { return b != nil && !*b }

	say(set.Spec.PodManagementPolicy == appsv1.ParallelPodManagement, "pods start one after the other: none would ever be ready")
	retention := set.Spec.PersistentVolumeClaimRetentionPolicy
	say(retention.WhenDeleted == appsv1.RetainPersistentVolumeClaimRetentionPolicyType && retention.WhenScaled == appsv1.RetainPersistentVolumeClaimRetentionPolicyType, "volumes may go: %+v", retention)
	say(no(pod.AutomountServiceAccountToken) && no(pod.EnableServiceLinks), "a token, or variables of Services that may be taken for settings")
	say(set.Spec.Template.Labels["app.kubernetes.io/name"] == "ebb", "labels %v", set.Spec.Template.Labels)

	// Pod Security "restricted"
	s := pod.SecurityContext
	say(yes(s.RunAsNonRoot) && *s.RunAsUser == 65532 && *s.FSGroup == 65532 && s.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault, "pod's security: %+v", s)
	cs := c.SecurityContext
	say(no(cs.AllowPrivilegeEscalation) && yes(cs.ReadOnlyRootFilesystem) && slices.Equal(cs.Capabilities.Drop, []corev1.Capability{"ALL"}) && len(cs.Capabilities.Add) == 0, "container's security: %+v", cs)
	say(!pod.HostNetwork && !pod.HostPID && !pod.HostIPC, "the pod is not apart from its machine")

	// probes
	for name, probe := range map[string]*corev1.Probe{"/startupz": c.StartupProbe, "/livez": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		say(probe != nil && probe.HTTPGet != nil && probe.HTTPGet.Path == name && probe.HTTPGet.Port == intstr.FromString("admin"), "%s: %+v", name, probe)
	}
	say(c.StartupProbe.PeriodSeconds*c.StartupProbe.FailureThreshold >= 600, "too short for a large log")
	grace := *pod.TerminationGracePeriodSeconds - c.Lifecycle.PreStop.Sleep.Seconds
	say(c.Lifecycle.PreStop.Sleep.Seconds > 0 && grace >= 20, "%d s from SIGTERM to SIGKILL", grace)

	// memory and threads
	memory := c.Resources.Limits[corev1.ResourceMemory]
	say(!memory.IsZero() && memory.Equal(c.Resources.Requests[corev1.ResourceMemory]), "memory: %+v", c.Resources)
	say(c.Resources.Limits.Cpu().IsZero() && !c.Resources.Requests.Cpu().IsZero(), "CPU: %+v", c.Resources)
	threads := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMAXPROCS" })
	say(threads >= 0 && c.Env[threads].ValueFrom.ResourceFieldRef.Resource == "requests.cpu", "GOMAXPROCS")

	// data
	env := envOf(set)
	data := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == env["EBB_DATA_DIR"] })
	say(len(set.Spec.VolumeClaimTemplates) == 1 && data >= 0 && c.VolumeMounts[data].Name == set.Spec.VolumeClaimTemplates[0].Name, "data: %+v", c.VolumeMounts)
	for _, spread := range pod.TopologySpreadConstraints {
		for name, value := range spread.LabelSelector.MatchLabels {
			say(set.Spec.Template.Labels[name] == value, "spread over %s selects %v, pods have %v", spread.TopologyKey, spread.LabelSelector.MatchLabels, set.Spec.Template.Labels)
		}
	}

	// variables are expanded only after they were defined
	defined := map[string]bool{}
	for _, e := range c.Env {
		for _, part := range strings.Split(e.Value, "$(")[1:] {
			name, _, _ := strings.Cut(part, ")")
			say(defined[name], "%s uses $(%s), which is not defined before it", e.Name, name)
		}
		say(!defined[e.Name], "%s is defined twice", e.Name)
		defined[e.Name] = true
	}
}

// With TLS, the files that the environment names are mounted from the secrets, and the probes use TLS.
func TestProductionWithTLS(t *testing.T) {
	objects := kustomize(t, "kustomize/overlays/production-tls")
	set := statefulSet(t, objects, "ebb")
	pod := set.Spec.Template.Spec
	c, env := pod.Containers[0], envOf(set)
	mounts := map[string]string{} // directory -> secret
	for _, m := range c.VolumeMounts {
		for _, v := range pod.Volumes {
			if v.Name == m.Name && v.Secret != nil && m.SubPath == "" && *v.Secret.DefaultMode == 0o440 {
				mounts[m.MountPath] = v.Secret.SecretName
			}
		}
	}
	for name, want := range map[string]string{"EBB_TLS_CERT": "ebb-tls/tls.crt", "EBB_TLS_KEY": "ebb-tls/tls.key", "EBB_TLS_CA": "ebb-tls/ca.crt", "EBB_GOSSIP_KEYS": "ebb-gossip/keys"} {
		dir, file := path.Split(env[name])
		if got := mounts[strings.TrimSuffix(dir, "/")] + "/" + file; got != want {
			t.Errorf("%s=%s is %s, want %s", name, env[name], got, want)
		}
	}
	for name, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "live": c.LivenessProbe, "ready": c.ReadinessProbe} {
		if env["EBB_TLS_ADMIN"] != "true" || p.HTTPGet.Scheme != corev1.URISchemeHTTPS {
			t.Errorf("%s: %+v", name, p.HTTPGet)
		}
	}
	if e := objects["ServiceMonitor/ebb"].(*ServiceMonitor).Spec.Endpoints[0]; e.Scheme != "https" {
		t.Errorf("metrics: %+v", e)
	}
}

// With a cluster secret, the file that the environment names is mounted from it, in the overlay and in the chart.
func TestClusterSecret(t *testing.T) {
	for name, objects := range map[string]map[string]runtime.Object{
		"overlay": kustomize(t, "kustomize/overlays/production-secret"),
		"chart":   template(t, "ebb", map[string]any{"clusterSecret": "ebb-cluster"}),
	} {
		set := statefulSet(t, objects, "ebb")
		pod := set.Spec.Template.Spec
		dir, file := path.Split(envOf(set)["EBB_CLUSTER_SECRET_FILE"])
		mounted := ""
		for _, m := range pod.Containers[0].VolumeMounts {
			for _, v := range pod.Volumes {
				if m.MountPath == strings.TrimSuffix(dir, "/") && m.ReadOnly && v.Name == m.Name && v.Secret != nil &&
					*v.Secret.DefaultMode == 0o440 {
					mounted = v.Secret.SecretName
				}
			}
		}
		if mounted != "ebb-cluster" || file != "secret" {
			t.Errorf("%s: the secret is read from %s of %q", name, file, mounted)
		}
	}
}

// checkAround holds what stands around a StatefulSet to it.
func checkAround(t *testing.T, objects map[string]runtime.Object, set *appsv1.StatefulSet) {
	t.Helper()
	name, labels := set.Name, set.Spec.Template.Labels
	ports := map[string]int32{}
	for _, p := range set.Spec.Template.Spec.Containers[0].Ports {
		ports[p.Name] = p.ContainerPort
	}
	selects := func(selector map[string]string) bool {
		for k, v := range selector {
			if labels[k] != v {
				return false
			}
		}
		return len(selector) > 0
	}
	for _, service := range []string{name, set.Spec.ServiceName} {
		s, ok := objects["Service/"+service].(*corev1.Service)
		if !ok {
			t.Fatalf("no Service %s", service)
		}
		if !selects(s.Spec.Selector) {
			t.Errorf("Service %s selects %v, pods have %v", service, s.Spec.Selector, labels)
		}
		for _, p := range s.Spec.Ports {
			if ports[p.TargetPort.StrVal] != p.Port {
				t.Errorf("Service %s: port %+v", service, p)
			}
		}
	}
	peers := objects["Service/"+set.Spec.ServiceName].(*corev1.Service).Spec
	if peers.ClusterIP != corev1.ClusterIPNone || !peers.PublishNotReadyAddresses {
		t.Errorf("nodes could not find one another before they are ready: %+v", peers)
	}
	budget := objects["PodDisruptionBudget/"+name].(*policyv1.PodDisruptionBudget).Spec
	if budget.MaxUnavailable.IntValue() != 1 || *budget.UnhealthyPodEvictionPolicy != policyv1.AlwaysAllow || !selects(budget.Selector.MatchLabels) {
		t.Errorf("budget: %+v", budget)
	}
	if policy, ok := objects["NetworkPolicy/"+name].(*networkingv1.NetworkPolicy); ok {
		if !selects(policy.Spec.PodSelector.MatchLabels) {
			t.Errorf("NetworkPolicy selects %v, pods have %v", policy.Spec.PodSelector, labels)
		}
		for _, rule := range policy.Spec.Ingress {
			for _, p := range rule.Ports {
				if ports[p.Port.StrVal] == 0 {
					t.Errorf("NetworkPolicy: no port %v", p.Port)
				}
			}
		}
	}
}

func envOf(set *appsv1.StatefulSet) map[string]string {
	env := map[string]string{}
	for _, e := range set.Spec.Template.Spec.Containers[0].Env {
		env[e.Name] = e.Value
	}
	return env
}
